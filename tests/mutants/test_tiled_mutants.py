"""Mutants of decoder layers in C and of who asks for them: see runner.py. Those of the C are compiled anew."""

import pytest
import tiny
from runner import Mutant, mutant_tests

if not tiny.units():
    pytest.skip("no C compiler here, or nothing that multiplies bfloat16", allow_module_level=True)

PRODUCTS_C, LAYER_C = "fused/products.c", "fused/layer.c"
PRODUCTS, TILED, LIBRARY = "core/products.py", "fused/tiled.py", "fused/library.py"
LAYER, LAYERS = "models/llama_layer.py", "models/decoder_layers.py"
T, M = "fused/test_tiled.py::", "models/test_tiled_layers.py::"
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
    Mutant(PRODUCTS_C, "the bias is forgotten", "if (bias) all += wide_at(bias);", "", PRODUCT),
    Mutant(PRODUCTS_C, "what it is added to is forgotten", "if (onto) all += wide_at(onto);", "", WHOLE),
    Mutant(PRODUCTS_C, "numbers behind the last sixteen are left", "for (size w = 0; w < left; w++)",
           "for (size w = 0; w < 0; w++)", PRODUCT),
    Mutant(PRODUCTS_C, "blocks of some outputs alone", "for (size c = 0; c < all; c += some)",
           "for (size c = 0; c < some; c += some)", PRODUCT),
    Mutant(PRODUCTS_C, "rows behind the last block are left", "size rows = pieces(j->rows, SIDE),", "size rows = j->rows / SIDE,",
           PRODUCT),
    *([Mutant(PRODUCTS_C, "the second rows of a block never", "int both = rows > EDGE;", "int both = 0;", PRODUCT)]
      if "tiles" in tiny.units() else []),
    Mutant(PRODUCTS_C, "a row less by vectors", "while (i < rows) ROWS_OF_BLOCK(1)", "while (i < rows - 1) ROWS_OF_BLOCK(1)",
           PRODUCT),
    Mutant(LAYER_C, "the update is forgotten", ".count = p->padded ? 2 : 1,", ".count = 1,", WHOLE),
    Mutant(PRODUCTS_C, "slopes of the rows before the last 32 alone", "size deep = pieces(rows, DEEP),",
           "size deep = rows / DEEP,", WHOLE),
    Mutant(PRODUCTS_C, "rows of the next text in the slopes", "row + k + 1 < rows ?", "1 ?", WHOLE),
    Mutant(PRODUCTS_C, "B's slope lies as A's", "to[across ?", "to[0 ?", WHOLE),
    Mutant(PRODUCTS_C, "scale forgotten in B", "= narrowed(by * b[o * rank + r])", "= narrowed(b[o * rank + r])", WHOLE),
    Mutant(LAYER_C, "q's place for v", "column += w->of[p].out;\n    }\n}", "column = w->of[p].out;\n    }\n}", WHOLE),
    Mutant(LAYER_C, "the first norm's epsilon for both", "r->inverse[1], rows, width_of(w), w->eps[1]",
           "r->inverse[1], rows, width_of(w), w->eps[0] + 1", WHOLE),
    Mutant(LAYER_C, "the first tokens instead of those asked for", "p->x + (t * j->length + j->first) * h, asked",
           "p->x + t * j->length * h, asked", WHOLE),
    Mutant(LAYER_C, "what came around attention is lost", "memcpy(r.around + (t * j->length + j->first) * h, r.d_middle",
           "memcpy(r.around + t * j->length * h, r.d_middle", WHOLE),
    Mutant(LAYER_C, "the gate's slope alone", "for (int q = GATE; q <= UP; q++) {",
           "for (int q = GATE; q <= GATE; q++) {", WHOLE),
    Mutant(LAYER_C, "scale forgotten in dB", ".scale = j->w->scale,", ".scale = 1,", WHOLE),
    Mutant(LAYER_C, "the last text's slopes are left out", "for (size t = 1; t < j->texts; t++)",
           "for (size t = 1; t < j->texts - 1; t++)", WHOLE),
    Mutant(LAYER_C, "all texts are rotated as the first", "p.cos = j->cos + p.start * j->turns;", "p.cos = j->cos;", WHOLE),
    Mutant(LAYER_C, "all threads work in one place", "j->room + thread * j->each", "j->room", THREADS),
    # --- who asks for them ---
    Mutant(PRODUCTS, "what lies there is taken for the weight", "if (weight.shape, weight.stride()) ==", "if weight.stride() ==",
           OURS),
    Mutant(PRODUCTS, "one way's layout for both", "self._held.get(way is own)", "self._held.get(True)", OURS),
    Mutant(PRODUCTS, "what a weight was before", "held is None or held[0] != own._version", "held is None", f"{OURS} {NEW}"),
    Mutant(PRODUCTS, "what is known is never forgotten", "        _known.pop(where, None)\n", "        pass\n", OURS),
    Mutant(PRODUCTS, "whoever is known there is forgotten", "if _known.get(where) is known():", "if True:", GONE),
    Mutant(PRODUCTS, "wherever the weight is by now", "own is None or own.data_ptr() != weight.data_ptr()", "own is None", GONE),
    Mutant(PRODUCTS, "inputs of any length", "x.shape[-1] == weight.shape[1] and", "", OURS),
    Mutant(TILED, "what a layer was before", "if one._version != self._versions[i]:", "if False:", NEW),
    Mutant(TILED, "nobody is told of another update", "increment_version(self.update)", "pass",
           f"{OVERWRITTEN} {T}test_another_update_takes_the_place_of_the_one_before"),
    Mutant(TILED, "something behind the rank", "new_zeros(sum(each))", "new_ones(sum(each))",
           WHOLE),
    Mutant(TILED, "all texts are rotated as the first",
           "length * self.laid.of_head if own else 0", "0", WHOLE),
    Mutant(TILED, "the update is not among what waits", "return [self.update, *layouts,", "return [*layouts,", OVERWRITTEN),
    Mutant(TILED, "weights are not among what waits", "return [self.update, *layouts, *laid.norms,", "return [self.update,",
           f"{M}test_a_gradient_whose_weights_have_changed_is_refused"),
    Mutant(TILED, "texts of any size", "if one.shape[-1] != width or (rows and one.shape[:-1] != rows):", "if False:", SIZES),
    Mutant(TILED, "weights of any size", "if weight.numel() != depth * (width + -width % SIDE):", "if False:", SIZES),
    Mutant(TILED, "slopes as a program makes tensors by default", "sum(counts), dtype=torch.float32)",
           "sum(counts), dtype=torch.get_default_dtype())",
           f"{T}test_slopes_are_float32_whatever_a_program_makes_by_default"),
    Mutant(LAYER, "never differentiated again", "way = _in_c if isinstance(weights, Layer) else _layer",
           "way = (lambda *given: _in_c(*given).detach()) if isinstance(weights, Layer) else _layer",
           f"{T}test_it_can_be_differentiated_again"),
    Mutant(LAYERS, "sizes that do not fit", "all(tiled.fits(one.weight) for one in self.linears)", "True",
           f"{M}test_sizes_that_do_not_fit_and_other_precisions_go_without"),
    Mutant(LIBRARY, "tiles that the kernel does not lend", " and (way is not TILES or _may_use_tiles())", "",
           f"{T}test_tiles_are_not_asked_for_where_the_kernel_lends_none"),
    Mutant(LIBRARY, "one way of compiling alone", "        if not others:\n            raise\n", "        raise\n",
           "fused/test_library.py::test_a_compiler_that_does_not_know_the_newest_instructions_makes_the_kernels_without"),
    Mutant(LIBRARY, "by vectors though nobody wants them", 'VECTORS if os.environ.get(SWITCH) == VECTORS else ""', "VECTORS",
           f"{T}test_by_vectors_alone_layers_are_in_c_only_where_that_is_wanted"),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
