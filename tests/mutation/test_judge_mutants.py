"""Mutants of the judges for everyday prompts, of judges from files, and of defaults for a model: see mutation_runner.py."""

from mutation_runner import Mutant, mutant_tests

BUILTIN, CUSTOM = "judges/builtin.py", "judges/custom.py"
INSPECTION = "jobs/model_inspection.py"
BY_HAND = "judges/test_everyday.py::test_scores_agree_with_pencil_and_paper"
SUITS = "test_prompts_and_temperature_that_suit_a_model"

# fmt: off
MUTANTS = [
    Mutant(BUILTIN, "four words are an answer", "1.25 * min(words, 8)", "2.5 * min(words, 4)", BY_HAND),
    Mutant(BUILTIN, "long texts lose less", "max(words - 20, 0) / 4", "max(words - 20, 0) / 5", BY_HAND),
    Mutant(BUILTIN, "a text may be cut off", "_FINISHED.search(text) else points / 2", "_FINISHED.search(text) else points", BY_HAND),
    Mutant(BUILTIN, "a quote ends no sentence", "[\\\"'”’)\\]*]*\\s*$", "\\s*$", BY_HAND),
    Mutant(BUILTIN, "triples may repeat", "for size in (1, 2, 3)]", "for size in (1, 2)]", BY_HAND),
    Mutant(BUILTIN, "a short repetitive text loses less", "min(len(words) / MIN_WORDS, 1.0) if points > 0 else points", "min(len(words) / MIN_WORDS, 1.0)",
           BY_HAND),
    Mutant(BUILTIN, "one word is varied", "points * min(len(words) / MIN_WORDS, 1.0) if points > 0 else points", "points", BY_HAND),
    Mutant(BUILTIN, "an echo is relevant", "* (1 - copied))", ")", BY_HAND),
    Mutant(BUILTIN, "function words are topics", "for word in _words(prompt) if word not in ignored}", "for word in _words(prompt)}", BY_HAND),
    Mutant(BUILTIN, "inflections are other words", "not stems.isdisjoint(_stems(word))", "word in stems", BY_HAND),
    Mutant(BUILTIN, "the second text has no prompt", "judge.score(prompt, second)]", 'judge.score("", second)]',
           "judges/test_everyday.py::test_the_better_answer_wins_on_either_side"),
    Mutant(CUSTOM, "an optional parameter is the response", "and item.default is inspect.Parameter.empty", "",
           "test_a_function_of_two_required_parameters_gets_the_prompt"),
    Mutant(CUSTOM, "the response comes first", "function(prompt, response) if reads_prompt", "function(response, prompt) if reads_prompt",
           "test_a_function_of_two_required_parameters_gets_the_prompt"),
    Mutant(CUSTOM, "any signature", 'inspect.signature(function).bind(*[""] * (1 + reads_prompt))', "pass", "test_other_signatures_are_refused"),
    Mutant(INSPECTION, "any stated temperature", "low <= stated <= high", "True", SUITS),
    Mutant(INSPECTION, "a stated temperature counts for nothing", "low <= stated <= high", "False", SUITS),
    Mutant(INSPECTION, "chat templates in the tokenizer's settings are overlooked", '.get("chat_template")', '.get("no")', SUITS),
    Mutant(INSPECTION, "tales for everybody", "EVERYDAY if self.has_chat_template else", "", SUITS),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
