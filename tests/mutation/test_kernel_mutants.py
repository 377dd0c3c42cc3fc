"""Mutants of the kernels in C: see mutation_runner.py. Each is compiled."""

import shutil

import pytest
from mutation_runner import Mutant, mutant_tests

if not any(map(shutil.which, ("cc", "gcc", "clang"))):
    pytest.skip("no C compiler here", allow_module_level=True)

ELEMENTWISE, ATTENTION, LORA, SIMD = (
    "kernels/csrc/elementwise.c",
    "kernels/csrc/attention.c",
    "kernels/csrc/lora_grad.c",
    "kernels/csrc/simd.h",
)
K = "kernels/test_c_ops.py::"
NORM, NORM_BACKWARD = f"{K}test_rms_norm_equals_loop", f"{K}test_rms_norm_gradient_matches_autograd"
SWIGLU, CAUSAL_ATTENTION = (
    f"{K}test_swiglu_and_gradients_match_autograd",
    f"{K}test_attention_and_gradients_match_autograd",
)
DECODE, LORA_GRADS = (
    f"{K}test_decode_attention_reads_and_extends_the_cache",
    f"{K}test_lora_grads_match_autograd",
)
GIVEN_LOW_RANK = f"{K}test_lora_grads_from_given_low_rank_products"
WORKSPACE = f"{K}test_each_thread_has_its_own_workspace"
ROUNDING = f"{K}test_rounding_to_bfloat16_breaks_ties_to_even"
LOGPROBS, EXP = f"{K}test_logprobs_and_entropy_match_softmax", f"{K}test_exp_is_accurate_to_the_last_digits"

# A table: two or three lines a row, not seven.
# fmt: off
MUTANTS = [
    Mutant(ELEMENTWISE, "the norm has no epsilon", "(reduce_add(sum) + tail) / width + j->eps", "(reduce_add(sum) + tail) / width", NORM),
    Mutant(ELEMENTWISE, "the gradient through the norm's scale has a wrong power", "* inverse_rms * inverse_rms * inverse_rms / width;",
           "* inverse_rms * inverse_rms / width;", NORM_BACKWARD),
    Mutant(ELEMENTWISE, "the residual gradient is not added", "from_float(to_float(residual_grad[i]) + to_float", "from_float(to_float", NORM_BACKWARD),
    Mutant(ELEMENTWISE, "the gradient of SiLU is only the sigmoid", "(sigmoid + silu * (1 - sigmoid))", "sigmoid", SWIGLU),
    Mutant(ELEMENTWISE, "the numbers after the last full vector are skipped", "parallel_for(swiglu_task, &j, round_up(count) / VEC_WIDTH,",
           "parallel_for(swiglu_task, &j, count / VEC_WIDTH,", SWIGLU),
    Mutant(ELEMENTWISE, "the temperature is ignored", "if (j->temperature != 1)", "if (0)", LOGPROBS),
    Mutant(ELEMENTWISE, "0 * -inf in the entropy", "(shifted < -1e30f ? -1e30f : shifted)", "shifted", LOGPROBS),
    Mutant(ELEMENTWISE, "the gradient lacks the sampled token's own term", "logits[j->tokens[n]] = from_float(token_grad);", "", LOGPROBS),
    Mutant(ELEMENTWISE, "all threads share one row of logits", "j->workspace + thread * vocab_size", "j->workspace", WORKSPACE),
    Mutant(SIMD, "exp lacks a term of its series", "sum = fmaf(sum, r, 1.0f / 720);", "sum = 1.0f / 720;", EXP),
    Mutant(SIMD, "the product is always added to the output", "t = 0; add && t < count", "t = 0; t < count", CAUSAL_ATTENTION),
    Mutant(ATTENTION, "all threads share one workspace in the forward pass",
           "*k = j->workspace + thread * attention_workspace_size(length, head_size), *v = k + length * width,\n          *k_t",
           "*k = j->workspace, *v = k + length * width, *k_t", WORKSPACE),
    Mutant(ATTENTION, "all threads share one workspace in the backward pass",
           "*k = j->workspace + thread * attention_workspace_size(length, head_size), *v = k + length * width,\n          *d_k",
           "*k = j->workspace, *v = k + length * width, *d_k", WORKSPACE),
    Mutant(ATTENTION, "all threads share one workspace while decoding", "j->workspace + thread * decode_attention_workspace_size(j->cached_length, head_size)",
           "j->workspace", WORKSPACE),
    Mutant(ATTENTION, "a token attends to the next one", "softmax(row, start + i + 1);", "softmax(row, start + i + 2);", CAUSAL_ATTENTION),
    Mutant(ATTENTION, "the softmax scale is missing in the backward pass", "q_cos, q_sin, rows, head_size, j->softmax_scale);\n            }",
           "q_cos, q_sin, rows, head_size, 1);\n            }", CAUSAL_ATTENTION),
    Mutant(ATTENTION, "the inverse rotation rotates forward", "dst[i] = from_float((x1 * to_float(c[i]) + x2 * to_float(s[i + half])) * scale);",
           "dst[i] = from_float((x1 * to_float(c[i]) + x2 * to_float(s[i])) * scale);", CAUSAL_ATTENTION),
    Mutant(ATTENTION, "key gradients come from the last head of a group only", "padded_length, q, width, key_count, rows, width, 1);",
           "padded_length, q, width, key_count, rows, width, 0);", CAUSAL_ATTENTION),
    Mutant(ATTENTION, "queries before the requested ones keep old values", "for (index_t t = 0; t < j->start_pos; t++)",
           "for (index_t t = 0; t < 0; t++)", CAUSAL_ATTENTION),
    Mutant(ATTENTION, "padding before a prompt is attended to", "j->attention_mask && !j->attention_mask[sequence * count + t]", "0", DECODE),
    Mutant(ATTENTION, "the new value is cached one column too late", "memcpy(values + j->cached_length * head_size,",
           "memcpy(values + (j->cached_length + 1) * head_size,", DECODE),
    Mutant(SIMD, "bfloat16 conversion truncates", "(value.bits + 0x7fff + (value.bits >> 16 & 1)) >> 16", "value.bits >> 16", NORM),
    Mutant(SIMD, "bfloat16 conversion rounds ties up, not to even", "0x7fff + (value.bits >> 16 & 1)", "0x8000", ROUNDING),
    Mutant(SIMD, "the vector bfloat16 conversion rounds ties up, not to even", "0x7fff + (bits >> 16 & 1)", "0x8000", ROUNDING),
    Mutant(LORA, "the gradient of A is scaled twice", "j->given_g_b ? 1 : j->scale", "j->scale", GIVEN_LOW_RANK),
    Mutant(LORA, "the stride of a given product is ignored", "row * j->g_b_stride + r", "row * j->rank + r", GIVEN_LOW_RANK),
    Mutant(LORA, "all threads share one column buffer", "j->column_buffer + thread * j->rows * VEC_WIDTH", "j->column_buffer", WORKSPACE),
    Mutant(LORA, "the gradient of B is not scaled", "rank + r + t] = grads[t * VEC_WIDTH + i] * j->scale;",
           "rank + r + t] = grads[t * VEC_WIDTH + i];", LORA_GRADS),
    Mutant(LORA, "the row stride of a gradient is ignored", "j->g + row * j->g_stride", "j->g + row * j->out_features", LORA_GRADS),
    Mutant(LORA, "ranks beyond 64 read the first ones", "small_matmul(grads, VEC_WIDTH, low_rank + r,", "small_matmul(grads, VEC_WIDTH, low_rank,", LORA_GRADS),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
