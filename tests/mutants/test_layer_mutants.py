"""Mutants of whole decoder layers and of products with frozen weights: see runner.py."""

from runner import Mutant, mutant_tests

PRODUCTS, LAYER, LAYERS = "core/products.py", "models/llama_layer.py", "models/decoder_layers.py"
RANK, KEPT = "models/low_rank.py", "models/layer_weights.py"
SLOPES = "test_products_and_slopes_are_autograds"
UPDATE = "test_they_are_the_frozen_ones_with_the_update"
NUMBERS, GRADIENTS = "test_its_numbers_are_those_of_loops", "test_its_gradients_are_those_of_differences"
ONCE = "test_a_weight_is_packed_once_until_it_changes"
ASKED = "test_the_other_library_is_asked_where_it_is_quicker_and_may_be"
BY_IT = "models/test_decoder_layers.py::test_by_the_other_library_too"
MODULES = "test_states_gradients_and_samples_are_the_modules"

# A table: two or three lines a row, not seven.
# fmt: off
MUTANTS = [
    # --- core/products.py ---
    Mutant(PRODUCTS, "before Zen 4 too", "int(family[1]) >= ZEN_4", "int(family[1]) >= 23",
           "test_the_processor_is_told_from_its_description"),
    Mutant(PRODUCTS, "of any maker", '"AuthenticAMD" in processor', "processor",
           "test_the_processor_is_told_from_its_description"),
    Mutant(PRODUCTS, "a gradient is lost", "None if torch.is_grad_enabled() else _layout", "_layout", ASKED),
    Mutant(PRODUCTS, "half precision that is not packed too", "suits and x.dtype == torch.float32", "suits", ASKED),
    Mutant(PRODUCTS, "small products too", "multiplications >= FEWEST and", "multiplications >= 0 and", ASKED),
    Mutant(PRODUCTS, "any memory for a weight", "weight.nbytes <= (LARGEST if packed is None else MOST_PACKED)", "True", ASKED),
    Mutant(PRODUCTS, "more than all room for a weight", "packed is None else MOST_PACKED)", "packed is None else 2**40)",
           "test_weights_for_which_there_is_no_room_stay_as_they_are"),
    Mutant(PRODUCTS, "parts of rows of weights too", " and _whole(weight)", "", ASKED),
    Mutant(PRODUCTS, "parts of rows of inputs too", "_whole(x) and ", "", ASKED),
    Mutant(PRODUCTS, "transposed ones never", " or one.mT.is_contiguous()", "", ASKED),
    Mutant(PRODUCTS, "the bias is forgotten", "_linear_pointwise(x, layout, bias,", "_linear_pointwise(x, layout, None,",
           "test_both_give_the_same_numbers"),
    Mutant(PRODUCTS, "what it is added to is forgotten", "_by_onednn(x, layout, None).add_(onto)", "_by_onednn(x, layout, None)",
           "test_both_give_the_same_numbers"),
    Mutant(PRODUCTS, "packed for every product", "if held is weight and version == weight._version:", "if False:", ONCE),
    Mutant(PRODUCTS, "a changed weight is not packed anew", " and version == weight._version", "", ONCE),
    Mutant(PRODUCTS, "packed for the smallest product", "multiplications >= FEWEST_PACKED", "True", ONCE),
    Mutant(PRODUCTS, "parts of rows with a packed weight", "FEWEST_PACKED and _whole(x)", "FEWEST_PACKED", ONCE),
    Mutant(PRODUCTS, "the context is never left", "_packed.reset(self._outer.pop())", "self._outer.pop()", ONCE),
    Mutant(PRODUCTS, "room without end", "self._room -= weight.nbytes", "pass",
           "test_weights_for_which_there_is_no_room_stay_as_they_are"),
    Mutant(PRODUCTS, "room is taken for each change", "        if held is None:\n", "        if True:\n",
           "test_weights_for_which_there_is_no_room_stay_as_they_are"),
    Mutant(PRODUCTS, "every other precision packed", "PACKS_BFLOAT16 and x.dtype == torch.bfloat16", "PACKS_BFLOAT16",
           "test_half_precision_is_packed_where_pytorch_computes_it_so_anyway"),
    Mutant(PRODUCTS, "layouts outlive the sampling", "_packed.reset(self._outer.pop())", "self._outer.pop()",
           "models/test_decoder_layers.py::test_other_work_while_packed_weights_sample_changes_nothing_and_no_layout_stays"),
    Mutant("models/generation.py", "nothing is packed", "        with packed:\n", "        if True:\n", BY_IT),
    Mutant("models/generation.py", "packed for each token", "        with packed:\n", "        with Packed():\n", BY_IT),
    Mutant("models/rows.py", "the last token but one is not read either", "- to_predict", "- 2 * to_predict",
           "test_to_predict_the_last_token_of_all_is_not_read"),
    Mutant("models/rows.py", "the last token is read in vain", " - to_predict", "",
           "test_to_predict_the_last_token_of_all_is_not_read"),
    # --- models/llama_layer.py ---
    Mutant("models/attention.py", "looks ahead", ".triu(1)", ".triu(2)", f"models/test_llama_layer.py::{NUMBERS}"),
    Mutant(LAYER, "the first norm's epsilon for both", "weights.norms[1], shape.eps[1])", "weights.norms[1], shape.eps[0])",
           NUMBERS),
    Mutant(LAYER, "sum of squares, not their mean", ".square_().div_(x.shape[-1])", ".square_()", NUMBERS),
    Mutant(LAYER, "scores are not scaled", "_spread(k, shape.heads), shape.size**-0.5)", "_spread(k, shape.heads), 1.0)",
           NUMBERS),
    Mutant(LAYER, "q and k are not rotated", "out.mul_(turn.sin).addcmul_(x.view(out.shape), turn.cos)",
           "out.copy_(x.view(out.shape))", NUMBERS),
    Mutant(LAYER, "the bias is forgotten", "weights.qkv, weights.bias)", "weights.qkv)", NUMBERS),
    Mutant(LAYER, "a head reads another group", "x[:, :, None].expand(-1, -1, heads // groups, -1, -1)",
           "x[:, None].expand(-1, heads // groups, -1, -1, -1)", NUMBERS),
    Mutant(LAYER, "rotated on, not back", "turn.sin, value=-1)", "turn.sin)", GRADIENTS),
    Mutant(LAYER, "scores are not scaled on the way back", "_times(sharp, d_scores.transpose(1, 2), q)",
           "_times(1.0, d_scores.transpose(1, 2), q)", GRADIENTS),
    Mutant(LAYER, "one head of a group learns", "slope.sum(2)", "slope[:, :, 0]", GRADIENTS),
    Mutant(LAYER, "nothing comes around the norm", "torch.addcmul(around, slope, inverse)", "torch.mul(slope, inverse)",
           GRADIENTS),
    Mutant(LAYER, "the norm's own slope", "inverse.pow(3)", "inverse.pow(2)", GRADIENTS),
    Mutant(LAYER, "the norm's weight on the way back", "    slope.mul_(weight)\n", "", GRADIENTS),
    Mutant(LAYER, "gate and up change about", "[d_gate, d_up], lows[2]", "[d_up, d_gate], lows[2]", GRADIENTS),
    Mutant(LAYER, "what is read by down, without up", "scale, open_gate * up,", "scale, open_gate,", GRADIENTS),
    Mutant(LAYER, "another input's low", "mixed, [d_middle], lows[1]", "mixed, [d_middle], lows[3]", GRADIENTS),
    Mutant(LAYER, "beside, the first layer's A learns from x", "qkv[:, x.shape[-1] :]", "qkv[:, : lows[0].shape[1]]",
           "test_the_first_layer_gives_no_gradient_to_the_words_and_the_same_to_its_pairs"),
    Mutant(LAYER, "the second derivative in half precision", "torch.promote_types(dtype, torch.float32)) for", "dtype) for",
           "test_twice_in_bfloat16_as_in_float64"),
    # --- models/low_rank.py ---
    Mutant(RANK, "scale forgotten in dA", "strict=True)]).mul_(scale)", "strict=True)])", SLOPES),
    Mutant(RANK, "scale forgotten in dB", ".to(b[0].dtype) * scale for", ".to(b[0].dtype) for", SLOPES),
    Mutant(RANK, "beside, x learns nothing through A", "return own.addmm_(low, a), low", "return own, low", SLOPES),
    Mutant(RANK, "beside, scaled twice", "below, back = low.t(), low_slope.t()", "below, back = low.t(), scale * low_slope.t()",
           SLOPES),
    Mutant(RANK, "slopes in half precision", "linear(back, x.t()).to(a[0].dtype)", "linear(back, x.t())",
           "test_half_precision_gives_slopes_in_that_of_the_pairs"),
    # --- models/layer_weights.py ---
    Mutant(KEPT, "scale forgotten", "part.scale * part.b.detach()", "part.b.detach()", UPDATE),
    Mutant(KEPT, "k in v's place", "(0, q, q + k, 0, 0, gate, 0)", "(0, q + k, q, 0, 0, gate, 0)",
           "test_beside_is_laid_out_as_the_products_read_it"),
    Mutant(KEPT, "made at every pass", "if [(id(one), version)", "if True or [(id(one), version)",
           "test_they_stay_where_they_are_and_are_not_made_twice"),
    Mutant(KEPT, "training is not noticed", "[(id(one), one._version) for one in now]", "[(id(one), v) for one, v in self._held]",
           "test_they_follow_what_is_trained_and_whoever_computes"),
    Mutant(KEPT, "the other rank's room stays", "!= self._ranks:", "!= self._ranks and not self._ranks:",
           "test_another_rank_takes_other_room_and_leaves_nothing_behind"),
    Mutant(KEPT, "q, k and v count as one", "(one, room.data) for", "(one, room) for",
           "models/test_decoder_layers.py::test_long_texts_learn_by_the_modules_where_short_ones_are_computed_as_one"),
    Mutant(KEPT, "what changes q is no change of the whole", "if changes != self._changes:", "if False:",
           "test_what_the_modules_merge_on_their_own_counts_as_a_change_for_each_alone"),
    Mutant(LAYER, "slopes have none themselves", "if torch.is_grad_enabled():", "if False:",
           "test_it_can_be_differentiated_twice"),
    Mutant(LAYER, "the weights do not depend on the pairs", "weight + change for", "weight + change.detach() for",
           "test_it_can_be_differentiated_twice"),
    # --- models/decoder_layers.py ---
    Mutant(LAYERS, "the rotation of another pass", "self._turn is None or self._of is not cos", "self._turn is None",
           "test_a_longer_text_is_rotated_further"),
    Mutant(LAYERS, "a window is forgotten", "if window and window < LONGEST * attention.head_dim:", "if False:",
           "test_what_the_function_does_not_do_is_left_to_the_modules"),
    Mutant(LAYERS, "two scales as one", " and len({part.scale for part in own}) == 1", "",
           "test_layers_whose_updates_have_two_scales_are_left_to_the_modules"),
    Mutant(LAYERS, "a mask is forgotten", "mask is None and x.shape[1] <= self.longest", "x.shape[1] <= self.longest",
           "test_the_modules_compute_long_texts_and_texts_under_a_mask"),
    Mutant(KEPT, "merged where nobody looks", "fast.weight(part, room)", "fast.weight(part)",
           UPDATE),
    Mutant(LAYERS, "merged weights of another adapter stay", "            whole.kept = None\n", "            pass\n",
           "test_no_merged_weight_outlives_its_adapter"),
    Mutant(LAYERS, "a model that is trained itself", "not moved and not self.module.training", "not moved",
           "test_a_model_that_is_trained_itself_is_computed_by_its_modules"),
    Mutant(LAYERS, "cached, with gradients", "(not records if cached else", "(True if cached else",
           "test_what_is_cached_has_gradients_by_the_modules"),
    Mutant("models/lora_linear.py", "held where it was never computed", "            self._weight, self._parts = room, None",
           "            self._weight = room",
           "models/test_decoder_layers.py::test_a_layer_that_was_merged_by_itself_is_merged_again"),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
