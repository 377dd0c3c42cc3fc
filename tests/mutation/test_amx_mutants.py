"""Mutants of decoder layers in C and of their callers: see mutation_runner.py. Those of the C code are compiled."""

import pytest
from mutation_runner import Mutant, mutant_tests
from support import tiny_models

if not tiny_models.layer_backends():
    pytest.skip("no C compiler here, or nothing that multiplies bfloat16", allow_module_level=True)

MATMUL_C, LAYER_C = "kernels/csrc/amx_matmul.c", "kernels/csrc/llama_layer.c"
MATMUL, AMX_LAYER, COMPILE = "kernels/matmul.py", "kernels/amx_layer.py", "kernels/compile.py"
LAYER = "models/fused_llama/layer.py"
T, M = "kernels/test_amx_layer.py::", "models/test_amx_layers.py::"
TILED_LINEAR, FULL_LAYER = f"{T}test_tiled_linear_matches_float64", f"{T}test_layer_and_gradients_match_float64"
THREADS = f"{T}test_results_do_not_depend_on_the_number_of_threads"
LM_HEAD, CHANGED_WEIGHTS = (
    f"{M}test_lm_head_products_use_our_kernels_in_both_directions",
    f"{M}test_changed_weights_are_used",
)
SIZES = f"{T}test_wrong_sizes_raise"
MOVED = f"{M}test_a_moved_weight_is_not_found_at_its_old_address"
OVERWRITTEN = f"{M}test_gradient_after_another_adapter_overwrote_the_update_is_refused"

# A table: two or three lines a row, not seven.
# fmt: off
MUTANTS = [
    # --- in C ---
    Mutant(MATMUL_C, "the bias is not added", "if (bias) result += load_vec(bias);", "", TILED_LINEAR),
    Mutant(MATMUL_C, "the addend is not added", "if (addend) result += load_vec(addend);", "", FULL_LAYER),
    Mutant(MATMUL_C, "the remainder of a row after the last full vector is skipped", "for (index_t lane = 0; lane < remaining; lane++)",
           "for (index_t lane = 0; lane < 0; lane++)", TILED_LINEAR),
    Mutant(MATMUL_C, "only the first chunk of output blocks is computed", "for (index_t c = 0; c < block_count; c += chunk)",
           "for (index_t c = 0; c < chunk; c += chunk)", TILED_LINEAR),
    Mutant(MATMUL_C, "the rows after the last full block are skipped", "index_t rows = ceil_div(j->rows, BLOCK_WIDTH),", "index_t rows = j->rows / BLOCK_WIDTH,",
           TILED_LINEAR),
    *([Mutant(MATMUL_C, "the second half of a row block is skipped", "int has_second_half = rows > TILE_WIDTH;", "int has_second_half = 0;", TILED_LINEAR)]
      if "tiles" in tiny_models.layer_backends() else []),
    Mutant(MATMUL_C, "the vector code skips the last row", "while (i < rows) ACCUMULATE_ROWS(1)", "while (i < rows - 1) ACCUMULATE_ROWS(1)",
           TILED_LINEAR),
    Mutant(LAYER_C, "the LoRA update is left out of the product", ".count = p->padded_rank ? 2 : 1,", ".count = 1,", FULL_LAYER),
    Mutant(MATMUL_C, "gradients skip the rows after the last full tile", "index_t depth_tiles = ceil_div(rows, TILE_DEPTH),",
           "index_t depth_tiles = rows / TILE_DEPTH,", FULL_LAYER),
    Mutant(MATMUL_C, "gradients of an odd number of rows include the next sequence's row", "row + k + 1 < rows ?", "1 ?", FULL_LAYER),
    Mutant(MATMUL_C, "the gradient of B is stored in the layout of A's", "dst[transposed ?", "dst[0 ?", FULL_LAYER),
    Mutant(MATMUL_C, "the packed B is not scaled", "from_float(scale * b[o * rank + r])", "from_float(b[o * rank + r])", FULL_LAYER),
    Mutant(LAYER_C, "all projections read the first projection's columns", "column += w->projections[p].out_features;\n    }\n}",
           "column = w->projections[p].out_features;\n    }\n}", FULL_LAYER),
    Mutant(LAYER_C, "the second norm has a wrong epsilon", "r->inverse_rms[1], rows, hidden_size(w), w->eps[1]",
           "r->inverse_rms[1], rows, hidden_size(w), w->eps[0] + 1", FULL_LAYER),
    Mutant(LAYER_C, "the first tokens are copied instead of the requested ones", "p->x + (t * j->length + j->start_pos) * h, queried",
           "p->x + t * j->length * h, queried", FULL_LAYER),
    Mutant(LAYER_C, "the residual gradient is added at the first tokens instead of the requested ones", "memcpy(r.residual_grad + (t * j->length + j->start_pos) * h, r.d_residual_mid",
           "memcpy(r.residual_grad + t * j->length * h, r.d_residual_mid", FULL_LAYER),
    Mutant(LAYER_C, "the gradient of the up projection is missing", "for (int q = GATE; q <= UP; q++) {",
           "for (int q = GATE; q <= GATE; q++) {", FULL_LAYER),
    Mutant(LAYER_C, "the gradient of B is not scaled", ".scale = j->w->scale,", ".scale = 1,", FULL_LAYER),
    Mutant(LAYER_C, "gradients leave out the last sequence", "for (index_t t = 1; t < j->sequences; t++)",
           "for (index_t t = 1; t < j->sequences - 1; t++)", FULL_LAYER),
    Mutant(LAYER_C, "every sequence has the first one's rotary positions", "p.cos = j->cos + p.start * j->rope_stride;", "p.cos = j->cos;", FULL_LAYER),
    Mutant(LAYER_C, "all threads share one workspace", "j->memory + thread * j->chunk_bytes", "j->memory", THREADS),
    # --- their callers ---
    Mutant(MATMUL, "another tensor at the same address counts as the registered weight", "if (weight.shape, weight.stride()) ==", "if weight.stride() ==",
           LM_HEAD),
    Mutant(MATMUL, "forward and backward use the same layout", "self._layouts.get(candidate is registered)", "self._layouts.get(True)", LM_HEAD),
    Mutant(MATMUL, "a changed weight keeps its old layout", "cached is None or cached[0] != registered._version", "cached is None", f"{LM_HEAD} {CHANGED_WEIGHTS}"),
    Mutant(MATMUL, "a deleted weight stays registered", "        _registered_weights.pop(address, None)\n", "        pass\n", LM_HEAD),
    Mutant(MATMUL, "deleting a weight removes the entry of a new one at its address", "if _registered_weights.get(address) is entry_ref():", "if True:", MOVED),
    Mutant(MATMUL, "a weight whose memory moved stays registered", "registered is None or registered.data_ptr() != weight.data_ptr()", "registered is None", MOVED),
    Mutant(MATMUL, "an input of another width is multiplied", "x.shape[-1] == weight.shape[1] and", "", LM_HEAD),
    Mutant(AMX_LAYER, "a changed layer weight keeps its old tiles", "if source._version != self._versions[i]:", "if False:", CHANGED_WEIGHTS),
    Mutant(AMX_LAYER, "PyTorch does not notice that the LoRA buffer changed", "increment_version(self.lora_buffer)", "pass",
           f"{OVERWRITTEN} {T}test_set_lora_replaces_the_previous_update"),
    Mutant(AMX_LAYER, "the padding behind the rank is not zero", "new_zeros(sum(buffer_sizes))", "new_ones(sum(buffer_sizes))",
           FULL_LAYER),
    Mutant(AMX_LAYER, "every sequence has the first one's rotary positions",
           "length * self.tiled_weights.head_size if per_text else 0", "0", FULL_LAYER),
    Mutant(AMX_LAYER, "the LoRA buffer is not saved for the backward pass", "return [\n            self.lora_buffer,\n            *layouts,", "return [*layouts,", OVERWRITTEN),
    Mutant(AMX_LAYER, "the weight layouts are not saved for the backward pass", "return [\n            self.lora_buffer,\n            *layouts,\n            *tiled_weights.norms,", "return [self.lora_buffer,",
           f"{M}test_gradient_after_the_weights_changed_is_refused"),
    Mutant(AMX_LAYER, "the sizes of the activations are not checked", "if tensor.shape[-1] != width or (leading_shape and tensor.shape[:-1] != leading_shape):", "if False:", SIZES),
    Mutant(AMX_LAYER, "the size of a tiled weight is not checked", "if tiled_weight.numel() != in_features * (out_features + -out_features % BLOCK_WIDTH):", "if False:", SIZES),
    Mutant(AMX_LAYER, "LoRA gradients have the default dtype instead of float32", "sum(counts), dtype=torch.float32)",
           "sum(counts), dtype=torch.get_default_dtype())",
           f"{T}test_lora_grads_are_float32_whatever_the_default_dtype"),
    Mutant(LAYER, "the layer's output has no gradient", "function = _amx_layer if isinstance(weights, AmxLayer) else _fused_layer",
           "function = (lambda *given: _amx_layer(*given).detach()) if isinstance(weights, AmxLayer) else _fused_layer",
           f"{T}test_double_backward"),
    Mutant(AMX_LAYER, "weights whose sizes are no multiples of 32 are accepted", " or not all(map(supports_weight, weights))", "",
           f"{M}test_unsupported_sizes_and_dtypes_have_no_amx_layer"),
    Mutant(COMPILE, "AMX is used without the permission of the operating system", " and (entry is not AMX or _request_amx_permission())", "",
           f"{T}test_amx_is_not_used_without_permission"),
    Mutant(COMPILE, "no other compiler flags are tried after a failure", "        if not others:\n            raise\n", "        raise\n",
           "kernels/test_compile.py::test_falls_back_to_older_instructions_if_the_compiler_lacks_the_newest"),
    Mutant(COMPILE, "the vector code is chosen without RLHF_LAB_KERNELS=vectors", 'USE_VECTORS if os.environ.get(KERNELS_ENV) == USE_VECTORS else ""', "USE_VECTORS",
           f"{T}test_layers_use_vectors_only_if_selected"),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
