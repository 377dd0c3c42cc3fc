"""Mutants of decoder layers in C and of who asks for them: see runner.py. Those of the C are compiled anew."""

import pytest
from mutation_runner import Mutant, mutant_tests
from support import tiny_models

if not tiny_models.units():
    pytest.skip("no C compiler here, or nothing that multiplies bfloat16", allow_module_level=True)

PRODUCTS_C, LAYER_C = "kernels/csrc/amx_matmul.c", "kernels/csrc/llama_layer.c"
PRODUCTS, TILED, LIBRARY = "kernels/matmul.py", "kernels/amx_layer.py", "kernels/compile.py"
LAYER, LAYERS = "models/fused_llama/layer.py", "models/fused_llama/patch.py"
T, M = "kernels/test_amx_layer.py::", "models/test_amx_layers.py::"
PRODUCT, WHOLE = f"{T}test_products_are_those_of_float64", f"{T}test_a_layer_and_its_slopes_are_those_of_float64"
THREADS = f"{T}test_any_number_of_threads_gives_the_same_numbers"
OURS, NEW = f"{M}test_the_heads_products_are_our_own_both_ways", f"{M}test_new_weights_are_read"
SIZES = f"{T}test_numbers_that_are_not_there_are_not_read"
GONE = f"{M}test_a_weight_that_has_gone_elsewhere_is_not_found_where_it_was"
OVERWRITTEN = f"{M}test_a_gradient_whose_update_another_adapter_has_overwritten_is_refused"

# A table: two or three lines a row, not seven.
# fmt: off
MUTANTS = [
    # --- in C ---
    Mutant(PRODUCTS_C, "the bias is forgotten", "if (bias) result += load_vec(bias);", "", PRODUCT),
    Mutant(PRODUCTS_C, "what it is added to is forgotten", "if (addend) result += load_vec(addend);", "", WHOLE),
    Mutant(PRODUCTS_C, "numbers behind the last sixteen are left", "for (index_t lane = 0; lane < remaining; lane++)",
           "for (index_t lane = 0; lane < 0; lane++)", PRODUCT),
    Mutant(PRODUCTS_C, "blocks of some outputs alone", "for (index_t c = 0; c < block_count; c += chunk)",
           "for (index_t c = 0; c < chunk; c += chunk)", PRODUCT),
    Mutant(PRODUCTS_C, "rows behind the last block are left", "index_t rows = ceil_div(j->rows, BLOCK_WIDTH),", "index_t rows = j->rows / BLOCK_WIDTH,",
           PRODUCT),
    *([Mutant(PRODUCTS_C, "the second rows of a block never", "int has_second_half = rows > TILE_WIDTH;", "int has_second_half = 0;", PRODUCT)]
      if "tiles" in tiny_models.units() else []),
    Mutant(PRODUCTS_C, "a row less by vectors", "while (i < rows) ACCUMULATE_ROWS(1)", "while (i < rows - 1) ACCUMULATE_ROWS(1)",
           PRODUCT),
    Mutant(LAYER_C, "the update is forgotten", ".count = p->padded_rank ? 2 : 1,", ".count = 1,", WHOLE),
    Mutant(PRODUCTS_C, "slopes of the rows before the last 32 alone", "index_t depth_tiles = ceil_div(rows, TILE_DEPTH),",
           "index_t depth_tiles = rows / TILE_DEPTH,", WHOLE),
    Mutant(PRODUCTS_C, "rows of the next text in the slopes", "row + k + 1 < rows ?", "1 ?", WHOLE),
    Mutant(PRODUCTS_C, "B's slope lies as A's", "dst[transposed ?", "dst[0 ?", WHOLE),
    Mutant(PRODUCTS_C, "scale forgotten in B", "from_float(scale * b[o * rank + r])", "from_float(b[o * rank + r])", WHOLE),
    Mutant(LAYER_C, "q's place for v", "column += w->projections[p].out_features;\n    }\n}",
           "column = w->projections[p].out_features;\n    }\n}", WHOLE),
    Mutant(LAYER_C, "the first norm's epsilon for both", "r->inverse_rms[1], rows, hidden_size(w), w->eps[1]",
           "r->inverse_rms[1], rows, hidden_size(w), w->eps[0] + 1", WHOLE),
    Mutant(LAYER_C, "the first tokens instead of those asked for", "p->x + (t * j->length + j->start_pos) * h, queried",
           "p->x + t * j->length * h, queried", WHOLE),
    Mutant(LAYER_C, "what came around attention is lost", "memcpy(r.residual_grad + (t * j->length + j->start_pos) * h, r.d_residual_mid",
           "memcpy(r.residual_grad + t * j->length * h, r.d_residual_mid", WHOLE),
    Mutant(LAYER_C, "the gate's slope alone", "for (int q = GATE; q <= UP; q++) {",
           "for (int q = GATE; q <= GATE; q++) {", WHOLE),
    Mutant(LAYER_C, "scale forgotten in dB", ".scale = j->w->scale,", ".scale = 1,", WHOLE),
    Mutant(LAYER_C, "the last text's slopes are left out", "for (index_t t = 1; t < j->sequences; t++)",
           "for (index_t t = 1; t < j->sequences - 1; t++)", WHOLE),
    Mutant(LAYER_C, "all texts are rotated as the first", "p.cos = j->cos + p.start * j->rope_stride;", "p.cos = j->cos;", WHOLE),
    Mutant(LAYER_C, "all threads work in one place", "j->memory + thread * j->chunk_bytes", "j->memory", THREADS),
    # --- who asks for them ---
    Mutant(PRODUCTS, "what lies there is taken for the weight", "if (weight.shape, weight.stride()) ==", "if weight.stride() ==",
           OURS),
    Mutant(PRODUCTS, "one way's layout for both", "self._layouts.get(candidate is registered)", "self._layouts.get(True)", OURS),
    Mutant(PRODUCTS, "what a weight was before", "cached is None or cached[0] != registered._version", "cached is None", f"{OURS} {NEW}"),
    Mutant(PRODUCTS, "what is known is never forgotten", "        _registered_weights.pop(address, None)\n", "        pass\n", OURS),
    Mutant(PRODUCTS, "whoever is known there is forgotten", "if _registered_weights.get(address) is entry_ref():", "if True:", GONE),
    Mutant(PRODUCTS, "wherever the weight is by now", "registered is None or registered.data_ptr() != weight.data_ptr()", "registered is None", GONE),
    Mutant(PRODUCTS, "inputs of any length", "x.shape[-1] == weight.shape[1] and", "", OURS),
    Mutant(TILED, "what a layer was before", "if source._version != self._versions[i]:", "if False:", NEW),
    Mutant(TILED, "nobody is told of another update", "increment_version(self.lora_buffer)", "pass",
           f"{OVERWRITTEN} {T}test_another_update_takes_the_place_of_the_one_before"),
    Mutant(TILED, "something behind the rank", "new_zeros(sum(buffer_sizes))", "new_ones(sum(buffer_sizes))",
           WHOLE),
    Mutant(TILED, "all texts are rotated as the first",
           "length * self.tiled_weights.head_size if per_text else 0", "0", WHOLE),
    Mutant(TILED, "the update is not among what waits", "return [\n            self.lora_buffer,\n            *layouts,", "return [*layouts,", OVERWRITTEN),
    Mutant(TILED, "weights are not among what waits", "return [\n            self.lora_buffer,\n            *layouts,\n            *tiled_weights.norms,", "return [self.lora_buffer,",
           f"{M}test_a_gradient_whose_weights_have_changed_is_refused"),
    Mutant(TILED, "texts of any size", "if tensor.shape[-1] != width or (leading_shape and tensor.shape[:-1] != leading_shape):", "if False:", SIZES),
    Mutant(TILED, "weights of any size", "if tiled_weight.numel() != in_features * (out_features + -out_features % BLOCK_WIDTH):", "if False:", SIZES),
    Mutant(TILED, "slopes as a program makes tensors by default", "sum(counts), dtype=torch.float32)",
           "sum(counts), dtype=torch.get_default_dtype())",
           f"{T}test_slopes_are_float32_whatever_a_program_makes_by_default"),
    Mutant(LAYER, "never differentiated again", "function = _amx_layer if isinstance(weights, AmxLayer) else _fused_layer",
           "function = (lambda *given: _amx_layer(*given).detach()) if isinstance(weights, AmxLayer) else _fused_layer",
           f"{T}test_it_can_be_differentiated_again"),
    Mutant(TILED, "sizes that do not fit", " or not all(map(supports_weight, weights))", "",
           f"{M}test_sizes_that_do_not_fit_and_other_precisions_go_without"),
    Mutant(LIBRARY, "tiles that the kernel does not lend", " and (entry is not AMX or _request_amx_permission())", "",
           f"{T}test_tiles_are_not_asked_for_where_the_kernel_lends_none"),
    Mutant(LIBRARY, "one way of compiling alone", "        if not others:\n            raise\n", "        raise\n",
           "kernels/test_compile.py::test_a_compiler_that_does_not_know_the_newest_instructions_makes_the_kernels_without"),
    Mutant(LIBRARY, "by vectors though nobody wants them", 'USE_VECTORS if os.environ.get(KERNELS_ENV) == USE_VECTORS else ""', "USE_VECTORS",
           f"{T}test_by_vectors_alone_layers_are_in_c_only_where_that_is_wanted"),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
