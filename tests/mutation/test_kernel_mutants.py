"""Mutants of the kernels in C: see runner.py. Each is compiled anew."""

import shutil

import pytest
from mutation_runner import Mutant, mutant_tests

if not any(map(shutil.which, ("cc", "gcc", "clang"))):
    pytest.skip("no C compiler here", allow_module_level=True)

ROWS, ATTENTION, LORA, COMMON = (
    "kernels/csrc/elementwise.c",
    "kernels/csrc/attention.c",
    "kernels/csrc/lora_grad.c",
    "kernels/csrc/simd.h",
)
K = "kernels/test_c_ops.py::"
NORM, NORM_BACK = f"{K}test_a_norm_is_that_of_a_loop", f"{K}test_a_norms_slope_is_autograds"
GATED, TEXTS = f"{K}test_the_gated_unit_and_its_slopes_are_autograds", f"{K}test_attention_and_its_slopes_are_autograds"
ONE_MORE, SLOPES = (
    f"{K}test_one_token_more_looks_at_what_lies_in_the_cache",
    f"{K}test_slopes_of_a_low_rank_update_are_autograds",
)
KNOWN = f"{K}test_slopes_of_a_low_rank_update_from_what_is_known"
ROOMS = f"{K}test_each_thread_works_in_a_place_of_its_own"
EVEN = f"{K}test_numbers_halfway_between_two_of_bfloat16_go_to_the_even_one"
HEAD, DIGITS = f"{K}test_what_a_head_says_is_what_softmax_says", f"{K}test_a_probability_is_right_to_its_last_digits"

# A table: two or three lines a row, not seven.
# fmt: off
MUTANTS = [
    Mutant(ROWS, "epsilon forgotten", "(reduce_add(sum) + tail) / width + j->eps", "(reduce_add(sum) + tail) / width", NORM),
    Mutant(ROWS, "the norm's own slope", "* inverse_rms * inverse_rms * inverse_rms / width;",
           "* inverse_rms * inverse_rms / width;", NORM_BACK),
    Mutant(ROWS, "nothing comes around the norm", "from_float(to_float(residual_grad[i]) + to_float", "from_float(to_float", NORM_BACK),
    Mutant(ROWS, "the gate opens without a slope", "(sigmoid + silu * (1 - sigmoid))", "sigmoid", GATED),
    Mutant(ROWS, "numbers behind the last block are left", "parallel_for(swiglu_task, &j, round_up(count) / VEC_WIDTH,",
           "parallel_for(swiglu_task, &j, count / VEC_WIDTH,", GATED),
    Mutant(ROWS, "no temperature", "if (j->temperature != 1)", "if (0)", HEAD),
    Mutant(ROWS, "0 times minus infinity", "(shifted < -1e30f ? -1e30f : shifted)", "shifted", HEAD),
    Mutant(ROWS, "the token's own slope", "logits[j->tokens[n]] = from_float(token_grad);", "", HEAD),
    Mutant(ROWS, "one row's logits where all threads keep theirs", "j->workspace + thread * vocab_size", "j->workspace", ROOMS),
    Mutant(COMMON, "a term of the series less", "sum = fmaf(sum, r, 1.0f / 720);", "sum = 1.0f / 720;", DIGITS),
    Mutant(COMMON, "always added to what is there", "t = 0; add && t < count", "t = 0; t < count", TEXTS),
    Mutant(ATTENTION, "all threads work in one place",
           "*k = j->workspace + thread * attention_workspace_size(length, head_size), *v = k + length * width,\n          *k_t",
           "*k = j->workspace, *v = k + length * width, *k_t", ROOMS),
    Mutant(ATTENTION, "all threads work in one place on the way back",
           "*k = j->workspace + thread * attention_workspace_size(length, head_size), *v = k + length * width,\n          *d_k",
           "*k = j->workspace, *v = k + length * width, *d_k", ROOMS),
    Mutant(ATTENTION, "all threads look in one place", "j->workspace + thread * decode_attention_workspace_size(j->cached_length, head_size)",
           "j->workspace", ROOMS),
    Mutant(ATTENTION, "a token looks ahead", "softmax(row, start + i + 1);", "softmax(row, start + i + 2);", TEXTS),
    Mutant(ATTENTION, "sharpness forgotten on the way back", "q_cos, q_sin, rows, head_size, j->softmax_scale);\n            }",
           "q_cos, q_sin, rows, head_size, 1);\n            }", TEXTS),
    Mutant(ATTENTION, "rotated on, not back", "dst[i] = from_float((x1 * to_float(c[i]) + x2 * to_float(s[i + half])) * scale);",
           "dst[i] = from_float((x1 * to_float(c[i]) + x2 * to_float(s[i])) * scale);", TEXTS),
    Mutant(ATTENTION, "keys learn from the last head alone", "padded_length, q, width, key_count, rows, width, 1);",
           "padded_length, q, width, key_count, rows, width, 0);", TEXTS),
    Mutant(ATTENTION, "queries that were not asked keep what was there", "for (index_t t = 0; t < j->start_pos; t++)",
           "for (index_t t = 0; t < 0; t++)", TEXTS),
    Mutant(ATTENTION, "what is before a prompt is looked at", "j->attention_mask && !j->attention_mask[sequence * count + t]", "0", ONE_MORE),
    Mutant(ATTENTION, "the value goes to the next column", "memcpy(values + j->cached_length * head_size,",
           "memcpy(values + (j->cached_length + 1) * head_size,", ONE_MORE),
    Mutant(COMMON, "halves are cut off", "(value.bits + 0x7fff + (value.bits >> 16 & 1)) >> 16", "value.bits >> 16", NORM),
    Mutant(COMMON, "halfway always up", "0x7fff + (value.bits >> 16 & 1)", "0x8000", EVEN),
    Mutant(COMMON, "halfway always up, many at once", "0x7fff + (bits >> 16 & 1)", "0x8000", EVEN),
    Mutant(LORA, "scale twice in dA", "j->given_g_b ? 1 : j->scale", "j->scale", KNOWN),
    Mutant(LORA, "parts of what is known as whole ones", "row * j->g_b_stride + r", "row * j->rank + r", KNOWN),
    Mutant(LORA, "all threads copy to one place", "j->column_buffer + thread * j->rows * VEC_WIDTH", "j->column_buffer", ROOMS),
    Mutant(LORA, "scale forgotten in dB", "rank + r + t] = grads[t * VEC_WIDTH + i] * j->scale;",
           "rank + r + t] = grads[t * VEC_WIDTH + i];", SLOPES),
    Mutant(LORA, "parts of rows as whole ones", "j->g + row * j->g_stride", "j->g + row * j->out_features", SLOPES),
    Mutant(LORA, "ranks beyond 64 as the first", "small_matmul(grads, VEC_WIDTH, low_rank + r,", "small_matmul(grads, VEC_WIDTH, low_rank,", SLOPES),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
