"""Mutants of decoder layers in C and of their callers: see mutation_runner.py. Those of the C code are compiled."""

import pytest
from mutation_runner import Mutant, mutant_tests
from support import tiny_models

if not tiny_models.layer_backends():
    pytest.skip("no C compiler here, or nothing that multiplies bfloat16", allow_module_level=True)

MATMUL_C, LAYER_C = "kernels/csrc/amx_matmul.c", "kernels/csrc/llama_layer.c"
MATMUL, AMX_LAYER, COMPILE = "kernels/matmul.py", "kernels/amx_layer.py", "kernels/compile.py"
LAYER, PATCH = "models/fused_llama/layer.py", "models/fused_llama/patch.py"
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
    Mutant(MATMUL_C, "the bias is forgotten", "if (bias) result += load_vec(bias);", "", TILED_LINEAR),
    Mutant(MATMUL_C, "what it is added to is forgotten", "if (addend) result += load_vec(addend);", "", FULL_LAYER),
    Mutant(MATMUL_C, "numbers behind the last sixteen are left", "for (index_t lane = 0; lane < remaining; lane++)",
           "for (index_t lane = 0; lane < 0; lane++)", TILED_LINEAR),
    Mutant(MATMUL_C, "blocks of some outputs alone", "for (index_t c = 0; c < block_count; c += chunk)",
           "for (index_t c = 0; c < chunk; c += chunk)", TILED_LINEAR),
    Mutant(MATMUL_C, "rows behind the last block are left", "index_t rows = ceil_div(j->rows, BLOCK_WIDTH),", "index_t rows = j->rows / BLOCK_WIDTH,",
           TILED_LINEAR),
    *([Mutant(MATMUL_C, "the second rows of a block never", "int has_second_half = rows > TILE_WIDTH;", "int has_second_half = 0;", TILED_LINEAR)]
      if "tiles" in tiny_models.layer_backends() else []),
    Mutant(MATMUL_C, "a row less by vectors", "while (i < rows) ACCUMULATE_ROWS(1)", "while (i < rows - 1) ACCUMULATE_ROWS(1)",
           TILED_LINEAR),
    Mutant(LAYER_C, "the update is forgotten", ".count = p->padded_rank ? 2 : 1,", ".count = 1,", FULL_LAYER),
    Mutant(MATMUL_C, "slopes of the rows before the last 32 alone", "index_t depth_tiles = ceil_div(rows, TILE_DEPTH),",
           "index_t depth_tiles = rows / TILE_DEPTH,", FULL_LAYER),
    Mutant(MATMUL_C, "rows of the next text in the slopes", "row + k + 1 < rows ?", "1 ?", FULL_LAYER),
    Mutant(MATMUL_C, "B's slope lies as A's", "dst[transposed ?", "dst[0 ?", FULL_LAYER),
    Mutant(MATMUL_C, "scale forgotten in B", "from_float(scale * b[o * rank + r])", "from_float(b[o * rank + r])", FULL_LAYER),
    Mutant(LAYER_C, "q's place for v", "column += w->projections[p].out_features;\n    }\n}",
           "column = w->projections[p].out_features;\n    }\n}", FULL_LAYER),
    Mutant(LAYER_C, "the first norm's epsilon for both", "r->inverse_rms[1], rows, hidden_size(w), w->eps[1]",
           "r->inverse_rms[1], rows, hidden_size(w), w->eps[0] + 1", FULL_LAYER),
    Mutant(LAYER_C, "the first tokens instead of those asked for", "p->x + (t * j->length + j->start_pos) * h, queried",
           "p->x + t * j->length * h, queried", FULL_LAYER),
    Mutant(LAYER_C, "what came around attention is lost", "memcpy(r.residual_grad + (t * j->length + j->start_pos) * h, r.d_residual_mid",
           "memcpy(r.residual_grad + t * j->length * h, r.d_residual_mid", FULL_LAYER),
    Mutant(LAYER_C, "the gate's slope alone", "for (int q = GATE; q <= UP; q++) {",
           "for (int q = GATE; q <= GATE; q++) {", FULL_LAYER),
    Mutant(LAYER_C, "scale forgotten in dB", ".scale = j->w->scale,", ".scale = 1,", FULL_LAYER),
    Mutant(LAYER_C, "the last text's slopes are left out", "for (index_t t = 1; t < j->sequences; t++)",
           "for (index_t t = 1; t < j->sequences - 1; t++)", FULL_LAYER),
    Mutant(LAYER_C, "all texts are rotated as the first", "p.cos = j->cos + p.start * j->rope_stride;", "p.cos = j->cos;", FULL_LAYER),
    Mutant(LAYER_C, "all threads work in one place", "j->memory + thread * j->chunk_bytes", "j->memory", THREADS),
    # --- their callers ---
    Mutant(MATMUL, "what lies there is taken for the weight", "if (weight.shape, weight.stride()) ==", "if weight.stride() ==",
           LM_HEAD),
    Mutant(MATMUL, "one way's layout for both", "self._layouts.get(candidate is registered)", "self._layouts.get(True)", LM_HEAD),
    Mutant(MATMUL, "what a weight was before", "cached is None or cached[0] != registered._version", "cached is None", f"{LM_HEAD} {CHANGED_WEIGHTS}"),
    Mutant(MATMUL, "what is known is never forgotten", "        _registered_weights.pop(address, None)\n", "        pass\n", LM_HEAD),
    Mutant(MATMUL, "whoever is known there is forgotten", "if _registered_weights.get(address) is entry_ref():", "if True:", MOVED),
    Mutant(MATMUL, "wherever the weight is by now", "registered is None or registered.data_ptr() != weight.data_ptr()", "registered is None", MOVED),
    Mutant(MATMUL, "inputs of any length", "x.shape[-1] == weight.shape[1] and", "", LM_HEAD),
    Mutant(AMX_LAYER, "what a layer was before", "if source._version != self._versions[i]:", "if False:", CHANGED_WEIGHTS),
    Mutant(AMX_LAYER, "nobody is told of another update", "increment_version(self.lora_buffer)", "pass",
           f"{OVERWRITTEN} {T}test_set_lora_replaces_the_previous_update"),
    Mutant(AMX_LAYER, "something behind the rank", "new_zeros(sum(buffer_sizes))", "new_ones(sum(buffer_sizes))",
           FULL_LAYER),
    Mutant(AMX_LAYER, "all texts are rotated as the first",
           "length * self.tiled_weights.head_size if per_text else 0", "0", FULL_LAYER),
    Mutant(AMX_LAYER, "the update is not among what waits", "return [\n            self.lora_buffer,\n            *layouts,", "return [*layouts,", OVERWRITTEN),
    Mutant(AMX_LAYER, "weights are not among what waits", "return [\n            self.lora_buffer,\n            *layouts,\n            *tiled_weights.norms,", "return [self.lora_buffer,",
           f"{M}test_gradient_after_the_weights_changed_is_refused"),
    Mutant(AMX_LAYER, "texts of any size", "if tensor.shape[-1] != width or (leading_shape and tensor.shape[:-1] != leading_shape):", "if False:", SIZES),
    Mutant(AMX_LAYER, "weights of any size", "if tiled_weight.numel() != in_features * (out_features + -out_features % BLOCK_WIDTH):", "if False:", SIZES),
    Mutant(AMX_LAYER, "slopes as a program makes tensors by default", "sum(counts), dtype=torch.float32)",
           "sum(counts), dtype=torch.get_default_dtype())",
           f"{T}test_lora_grads_are_float32_whatever_the_default_dtype"),
    Mutant(LAYER, "never differentiated again", "function = _amx_layer if isinstance(weights, AmxLayer) else _fused_layer",
           "function = (lambda *given: _amx_layer(*given).detach()) if isinstance(weights, AmxLayer) else _fused_layer",
           f"{T}test_double_backward"),
    Mutant(AMX_LAYER, "sizes that do not fit", " or not all(map(supports_weight, weights))", "",
           f"{M}test_unsupported_sizes_and_dtypes_have_no_amx_layer"),
    Mutant(COMPILE, "tiles that the kernel does not lend", " and (entry is not AMX or _request_amx_permission())", "",
           f"{T}test_amx_is_not_used_without_permission"),
    Mutant(COMPILE, "one way of compiling alone", "        if not others:\n            raise\n", "        raise\n",
           "kernels/test_compile.py::test_falls_back_to_older_instructions_if_the_compiler_lacks_the_newest"),
    Mutant(COMPILE, "by vectors though nobody wants them", 'USE_VECTORS if os.environ.get(KERNELS_ENV) == USE_VECTORS else ""', "USE_VECTORS",
           f"{T}test_layers_use_vectors_only_if_selected"),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
