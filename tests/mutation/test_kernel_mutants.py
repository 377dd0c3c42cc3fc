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
K = "kernels/test_ops.py::"
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
    Mutant(ROWS, "epsilon forgotten", "(total(sum) + rest) / width + j->eps", "(total(sum) + rest) / width", NORM),
    Mutant(ROWS, "the norm's own slope", "* inverse * inverse * inverse / width;",
           "* inverse * inverse / width;", NORM_BACK),
    Mutant(ROWS, "nothing comes around the norm", "narrowed(widened(around[i]) + widened", "narrowed(widened", NORM_BACK),
    Mutant(ROWS, "the gate opens without a slope", "(open + opened * (1 - open))", "open", GATED),
    Mutant(ROWS, "numbers behind the last block are left", "share(gated, &j, rounded(count) / WIDE,",
           "share(gated, &j, count / WIDE,", GATED),
    Mutant(ROWS, "no temperature", "if (j->temperature != 1)", "if (0)", HEAD),
    Mutant(ROWS, "0 times minus infinity", "(below < -1e30f ? -1e30f : below)", "below", HEAD),
    Mutant(ROWS, "the token's own slope", "logits[j->tokens[n]] = narrowed(of_own);", "", HEAD),
    Mutant(ROWS, "one row's logits where all threads keep theirs", "j->room + thread * words", "j->room", ROOMS),
    Mutant(COMMON, "a term of the series less", "sum = fmaf(sum, r, 1.0f / 720);", "sum = 1.0f / 720;", DIGITS),
    Mutant(COMMON, "always added to what is there", "t = 0; add && t < count", "t = 0; t < count", TEXTS),
    Mutant(ATTENTION, "all threads work in one place",
           "*k = j->room + thread * attend_room(length, of_head), *v = k + length * width, *k_across",
           "*k = j->room, *v = k + length * width, *k_across", ROOMS),
    Mutant(ATTENTION, "all threads work in one place on the way back",
           "*k = j->room + thread * attend_room(length, of_head), *v = k + length * width, *d_k",
           "*k = j->room, *v = k + length * width, *d_k", ROOMS),
    Mutant(ATTENTION, "all threads look in one place", "j->room + thread * attend_next_room(j->used, of_head)", "j->room", ROOMS),
    Mutant(ATTENTION, "a token looks ahead", "soften(row, start + i + 1);", "soften(row, start + i + 2);", TEXTS),
    Mutant(ATTENTION, "sharpness forgotten on the way back", "own_cos, own_sin, rows, of_head, j->sharp);\n            }",
           "own_cos, own_sin, rows, of_head, 1);\n            }", TEXTS),
    Mutant(ATTENTION, "rotated on, not back", "to[i] = narrowed((one * widened(c[i]) + other * widened(s[i + half])) * by);",
           "to[i] = narrowed((one * widened(c[i]) + other * widened(s[i])) * by);", TEXTS),
    Mutant(ATTENTION, "keys learn from the last head alone", "across, q, width, count, rows, width, 1);",
           "across, q, width, count, rows, width, 0);", TEXTS),
    Mutant(ATTENTION, "queries that were not asked keep what was there", "for (size t = 0; t < j->first; t++)",
           "for (size t = 0; t < 0; t++)", TEXTS),
    Mutant(ATTENTION, "what is before a prompt is looked at", "j->seen && !j->seen[text * count + t]", "0", ONE_MORE),
    Mutant(ATTENTION, "the value goes to the next column", "memcpy(values + j->used * of_head,",
           "memcpy(values + (j->used + 1) * of_head,", ONE_MORE),
    Mutant(COMMON, "halves are cut off", "(of.bits + 0x7fff + (of.bits >> 16 & 1)) >> 16", "of.bits >> 16", NORM),
    Mutant(COMMON, "halfway always up", "0x7fff + (of.bits >> 16 & 1)", "0x8000", EVEN),
    Mutant(COMMON, "halfway always up, many at once", "0x7fff + (bits >> 16 & 1)", "0x8000", EVEN),
    Mutant(LORA, "scale twice in dA", "j->known_g ? 1 : j->scale", "j->scale", KNOWN),
    Mutant(LORA, "parts of what is known as whole ones", "row * j->apart_g + r", "row * j->rank + r", KNOWN),
    Mutant(LORA, "all threads copy to one place", "j->strips + thread * j->rows * WIDE", "j->strips", ROOMS),
    Mutant(LORA, "scale forgotten in dB", "rank + r + t] = found[t * WIDE + i] * j->scale;",
           "rank + r + t] = found[t * WIDE + i];", SLOPES),
    Mutant(LORA, "parts of rows as whole ones", "j->g + row * j->apart", "j->g + row * j->out", SLOPES),
    Mutant(LORA, "ranks beyond 64 as the first", "product(found, WIDE, low + r,", "product(found, WIDE, low,", SLOPES),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
