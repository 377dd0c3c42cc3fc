"""Mutants of the learning core: each row breaks one line of the code, and the tests it names must notice.

A row is (file, name, source snippet, mutated snippet, tests). `rlhf_lab/core/kl.py` is tested by
`tests/core/test_kl.py`, so rows for trainers work the same way. Every named test must fail; a snippet that is gone from
the source, or no longer unique, fails loudly: then the row must follow the code.

The mutant is executed in a fresh module, the rest of rlhf_lab and the test file are imported afresh around it, and all
modules are put back afterwards. Nothing is written to disk.
"""

import importlib
import inspect
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROKEN = (NameError, AttributeError, TypeError, ImportError)  # the mutant does not run at all: that proves nothing


class Mutant(NamedTuple):
    file: str  # below rlhf_lab/
    name: str
    source: str
    mutated: str
    tests: str  # names of test functions, separated by blanks; each must fail


PREFERENCE, LOGPROBS, KL = "core/preference.py", "core/logprobs.py", "core/kl.py"
ADVANTAGES, LOSSES = "core/advantages.py", "core/policy_losses.py"

# A table: two lines a row, not seven.
# fmt: off
MUTANTS = [
    # --- core/preference.py ---
    Mutant(PREFERENCE, "swap chosen and rejected in the loss", "logit = chosen - rejected", "logit = rejected - chosen",
           "test_loss_of_one_pair_by_hand"),
    Mutant(PREFERENCE, "swap chosen and rejected in the accuracy", "(chosen > rejected)", "(chosen < rejected)",
           "test_accuracy_leaves_ties_out"),
    Mutant(PREFERENCE, "equal scores count as right", "(chosen > rejected)", "(chosen >= rejected)",
           "test_accuracy_by_hand"),
    Mutant(PREFERENCE, "ties count in the accuracy", "/ decided.sum()", "/ decided.numel()",
           "test_accuracy_leaves_ties_out test_accuracy_of_nothing_is_nan"),
    Mutant(PREFERENCE, "margin on ties", "logit - margin.masked_fill(tie, 0.0)", "logit - margin",
           "test_loss_equals_loop test_tie_pulls_scores_together_whatever_its_margin"),
    Mutant(PREFERENCE, "margin added", "logit - margin.masked", "logit + margin.masked",
           "test_margin_is_subtracted_and_may_be_a_number"),
    Mutant(PREFERENCE, "ties are votes for chosen", ".masked_fill(tie, 0.5)", "",
           "test_tie_pulls_scores_together_whatever_its_margin"),
    Mutant(PREFERENCE, "label smoothing lost", "1.0 - label_smoothing)", "1.0)",
           "test_smoothing_stops_at_its_optimum test_loss_equals_loop"),
    Mutant(PREFERENCE, "loss summed", "F.logsigmoid(-logit)).mean()", "F.logsigmoid(-logit)).sum()",
           "test_loss_equals_loop"),
    Mutant(PREFERENCE, "unstable log sigmoid", "target * F.logsigmoid(logit)", "target * logit.sigmoid().log()",
           "test_loss_stays_finite_for_large_differences"),
    Mutant(PREFERENCE, "Wald instead of Wilson", "+ z * z / (4.0 * n * n)", "",
           "test_wilson_interval_by_hand test_wilson_interval_against_published_values"),
    Mutant(PREFERENCE, "calibration edge in the bin below",
           "(prob * bins).long()", "((prob * bins).ceil().long() - 1).clamp(min=0)",
           "test_calibration_bins_by_hand"),
    # --- core/logprobs.py ---
    Mutant(LOGPROBS, "mask excludes EOS", "is_eos.cumsum(dim=1) - is_eos.long()", "is_eos.cumsum(dim=1)",
           "test_item_03_mask_ends_with_the_first_eos test_item_03_pad_may_equal_eos_and_eos_may_come_first"),
    Mutant(LOGPROBS, "every EOS stays in", "return eos_before == 0", "return (eos_before == 0) | is_eos",
           "test_item_03_pad_may_equal_eos_and_eos_may_come_first"),
    Mutant(LOGPROBS, "only the first stop token counts", "torch.tensor(eos_ids,", "torch.tensor(eos_ids[:1],",
           "test_item_03_several_stop_tokens"),
    Mutant(LOGPROBS, "temperature ignored", "logits if temperature == 1.0 else logits / temperature", "logits",
           "test_item_05_temperature_divides_the_logits"),
    Mutant(LOGPROBS, "temperature multiplies", "else logits / temperature", "else logits * temperature",
           "test_item_05_temperature_divides_the_logits"),
    Mutant(LOGPROBS, "log-prob not normalised", " - scaled.logsumexp(dim=-1)", "",
           "test_item_05_temperature_divides_the_logits"),
    Mutant(LOGPROBS, "entropy sign", "entropy = -(probs", "entropy = (probs", "test_logprob_and_entropy_by_hand"),
    Mutant(LOGPROBS, "0 * -inf in the entropy", "all_logprobs.masked_fill(probs == 0, 0.0)", "all_logprobs",
           "test_large_and_minus_infinite_logits"),
    Mutant(LOGPROBS, "half precision not widened", "logits = logits.float()", "pass",
           "test_half_precision_is_computed_in_float32"),
    Mutant(LOGPROBS, "last chunk lost", "range(0, rows, chunk)", "range(0, rows - chunk + 1, chunk)",
           "test_chunks_bound_what_is_worked_on"),
    Mutant(LOGPROBS, "no chunks", "if wants_grad or rows <= chunk:", "if True:", "test_chunks_bound_what_is_worked_on"),
    # --- core/kl.py ---
    Mutant(KL, "KL sign", "difference = logprobs - ref_logprobs", "difference = ref_logprobs - logprobs",
           "test_estimates_by_hand"),
    Mutant(KL, "half lost in k2", "0.5 * difference.square()", "difference.square()", "test_estimates_by_hand"),
    Mutant(KL, "k3 with the sign of d flipped",
           "torch.expm1(-difference) + difference", "torch.expm1(difference) - difference",
           "test_estimates_by_hand test_item_10_expectation_is_the_exact_kl"),
    Mutant(KL, "k3 cancels", "torch.expm1(-difference) +", "torch.exp(-difference) - 1 +",
           "test_k3_is_accurate_for_small_differences"),
    Mutant(KL, "full KL the wrong way round", "probs = logprobs.exp()", "probs = ref_logprobs.exp()",
           "test_full_kl_equals_loop"),
    Mutant(KL, "temperature on the policy only", "scale_logits(ref_logits, temperature)", "ref_logits",
           "test_full_kl_equals_loop"),
    Mutant(KL, "the penalty pays for leaving the reference", "penalty = -kl_coef", "penalty = kl_coef",
           "test_shaped_rewards_by_hand test_item_12_score_is_added_once"),
    Mutant(KL, "score on every token", "masked_fill(~is_last_token(mask), 0.0)", "masked_fill(~mask, 0.0)",
           "test_item_12_score_is_added_once"),
    Mutant(KL, "score on the last column",
           "masked_fill(~is_last_token(mask), 0.0)",
           "masked_fill(torch.arange(mask.shape[1]) < mask.shape[1] - 1, 0.0)",
           "test_shaped_rewards_by_hand"),
    Mutant(KL, "KL of padding counts", "kl.masked_fill(~mask, 0.0)", "kl",
           "test_item_12_score_is_added_once test_shaped_rewards_by_hand"),
    Mutant(KL, "adaptive KL not clipped",
           "min(max(float(sequence_kl) / self.target - 1.0, -MAX_PROPORTIONAL_ERROR), MAX_PROPORTIONAL_ERROR)",
           "float(sequence_kl) / self.target - 1.0",
           "test_adaptive_kl_clips_the_error test_item_11_controller_unit_is_the_sequence_sum"),
    Mutant(KL, "adaptive KL steers the wrong way", "1.0 + error * n", "1.0 - error * n", "test_adaptive_kl_by_hand"),
    Mutant(KL, "adaptive KL forgets n", "error * n / self.horizon", "error / self.horizon",
           "test_adaptive_kl_by_hand test_adaptive_kl_clips_the_error"),
    # --- core/advantages.py ---
    Mutant(ADVANTAGES, "mean over padding", "x.sum() / mask.sum().clamp(min=1)", "x.mean()",
           "test_masked_mean_and_var_by_hand"),
    Mutant(ADVANTAGES, "junk enters the mean", "    x = x.masked_fill(~mask, 0.0)\n", "    x = x * mask\n",
           "test_masked_mean_and_var_by_hand"),
    Mutant(ADVANTAGES, "biased variance", "(mask.sum() - 1)", "mask.sum()",
           "test_masked_mean_and_var_by_hand test_item_15_whitening_is_masked"),
    Mutant(ADVANTAGES, "padding in the variance",
           "(x - masked_mean(x, mask)).masked_fill(~mask, 0.0)", "x.masked_fill(~mask, 0.0) - masked_mean(x, mask)",
           "test_masked_mean_and_var_by_hand"),
    Mutant(ADVANTAGES, "whitening shifts the mean always", "if not shift_mean:", "if False:",
           "test_item_15_shift_mean_false_keeps_the_mean"),
    Mutant(ADVANTAGES, "whitening leaks into padding", "return whitened.masked_fill(~mask, 0.0)", "return whitened",
           "test_item_15_whitening_is_masked"),
    Mutant(ADVANTAGES, "whiten before returns",
           "advantages, advantages + values", "advantages, whiten(advantages, mask) + values",
           "test_item_14_returns_use_unwhitened_advantages test_gae_by_hand"),
    Mutant(ADVANTAGES, "values regress on rewards (a mistake of the seeds)",
           "advantages, advantages + values", "advantages, rewards",
           "test_item_14_returns_use_unwhitened_advantages"),
    Mutant(ADVANTAGES, "GAE shifted by one", "column + factor * running", "column.roll(1) + factor * running",
           "test_item_13_gae_equals_a_loop_per_sample"),
    Mutant(ADVANTAGES, "next value is this value", "x[:, 1:], torch.zeros_like(x[:, :1])", "x",
           "test_gae_by_hand test_nstep_by_hand"),
    Mutant(ADVANTAGES, "deltas without gamma", "gamma * _following(values,", "_following(values,",
           "test_gae_by_hand test_item_13_gae_property"),
    Mutant(ADVANTAGES, "gamma missing from gamma * lambda", "mask, gamma * lam)", "mask, lam)",
           "test_gae_by_hand test_item_13_gae_equals_a_loop_per_sample"),
    Mutant(ADVANTAGES, "last_values ignored", "if last is None else last.unsqueeze(1).expand_as(x)", "",
           "test_gae_by_hand test_nstep_equals_loop"),
    Mutant(ADVANTAGES, "last_values in the last column, not at the end of the response",
           "torch.where(is_last_token(mask), end,", "torch.where(torch.arange(x.shape[1]) == x.shape[1] - 1, end,",
           "test_item_13_gae_equals_a_loop_per_sample test_gae_by_hand"),
    Mutant(ADVANTAGES, "padding not filled before the estimators",
           "return rewards.masked_fill(~mask, 0.0), values.masked_fill(~mask, 0.0)", "return rewards, values",
           "test_item_14_returns_use_unwhitened_advantages test_junk_in_padding_never_reaches_a_gradient"),
    Mutant(ADVANTAGES, "one step too many", "range(min(n, mask.shape[1]))", "range(min(n + 1, mask.shape[1]))",
           "test_nstep_by_hand test_nstep_equals_loop"),
    # --- core/policy_losses.py ---
    Mutant(LOSSES, "no clip", "-advantages * ratio.clamp(1.0 - cliprange, 1.0 + cliprange)", "-advantages * ratio",
           "test_ppo_clip_by_hand test_ppo_clip_equals_loop_whatever_the_padding"),
    Mutant(LOSSES, "min instead of max in the policy loss",
           "loss=token_mean(torch.maximum(", "loss=token_mean(torch.minimum(",
           "test_ppo_clip_by_hand test_ppo_clip_gradient_by_hand"),
    Mutant(LOSSES, "always the clipped term",
           "loss=token_mean(torch.maximum(unclipped, clipped), mask", "loss=token_mean(clipped, mask",
           "test_ppo_clip_by_hand test_ppo_clip_gradient_by_hand"),
    Mutant(LOSSES, "sign of the policy loss",
           "    advantages = advantages.masked", "    advantages = -advantages.masked",
           "test_item_07_first_minibatch test_ppo_clip_by_hand"),
    Mutant(LOSSES, "ratio of logs (a mistake of the seeds)",
           "ratio = log_ratio.exp()", "ratio = logprobs / old_logprobs",
           "test_ppo_clip_by_hand test_item_07_first_minibatch"),
    Mutant(LOSSES, "ratio the wrong way round", "ratio = log_ratio.exp()", "ratio = (-log_ratio).exp()",
           "test_ppo_clip_gradient_by_hand test_item_07_first_minibatch"),
    Mutant(LOSSES, "clipfrac whatever the sign of the advantage",
           "(clipped > unclipped).to(ratio.dtype)", "((ratio - 1).abs() > (cliprange or 9e9)).to(ratio.dtype)",
           "test_ppo_clip_by_hand test_ppo_clip_equals_loop_whatever_the_padding"),
    Mutant(LOSSES, "clipfrac not strict", "(clipped > unclipped).to(ratio", "(clipped >= unclipped).to(ratio",
           "test_item_07_first_minibatch"),
    Mutant(LOSSES, "half lost in approx_kl", "0.5 * log_ratio.detach()", "log_ratio.detach()",
           "test_ppo_clip_by_hand test_item_22_entropy_and_statistics_are_masked"),
    Mutant(LOSSES, "padding of the log-probs not filled",
           "(logprobs - old_logprobs).masked_fill(~mask, 0.0)", "logprobs - old_logprobs",
           "test_junk_in_padding_never_reaches_a_gradient test_item_07_first_minibatch"),
    Mutant(LOSSES, "padding of the advantages not filled", "advantages.masked_fill(~mask, 0.0)", "advantages * 1",
           "test_junk_in_padding_never_reaches_a_gradient"),
    Mutant(LOSSES, "padding in the token mean",
           "x.masked_fill(~mask, 0.0).sum() / denominator", "x.sum() / denominator",
           "test_item_16_any_split_gives_the_same_gradient test_item_22_entropy_and_statistics_are_masked"),
    Mutant(LOSSES, "mean of means", "if denominator is None:", "if True:",
           "test_item_16_any_split_gives_the_same_gradient test_item_16_split_property"),
    Mutant(LOSSES, "statistics forget the denominator",
           "ratio_mean=token_mean(ratio.detach(), mask, denominator)", "ratio_mean=token_mean(ratio.detach(), mask)",
           "test_item_16_any_split_gives_the_same_gradient"),
    Mutant(LOSSES, "half lost in the value loss", "loss=0.5 * token_mean", "loss=token_mean",
           "test_item_17_value_loss_by_hand test_item_17_without_cliprange_plain_half_squared_error"),
    Mutant(LOSSES, "values clipped around the returns",
           "old_values + (values - old_values).clamp(", "returns + (values - returns).clamp(",
           "test_item_17_value_loss_by_hand test_item_17_value_loss_equals_loop_whatever_the_padding"),
    Mutant(LOSSES, "min instead of max in the value loss",
           "loss=0.5 * token_mean(torch.maximum(", "loss=0.5 * token_mean(torch.minimum(",
           "test_item_17_value_loss_by_hand test_item_17_value_loss_equals_loop_whatever_the_padding"),
    Mutant(LOSSES, "padding of the values not filled",
           "(x.masked_fill(~mask, 0.0) for x in (values", "(x * 1 for x in (values",
           "test_junk_in_padding_never_reaches_a_gradient"),
    Mutant(LOSSES, "explained variance of the values, not the residuals",
           "masked_var(returns - values, mask)", "masked_var(values, mask)",
           "test_explained_variance_by_hand"),
    Mutant(LOSSES, "rounding passes for variance", "constant = spread <= rounding", "constant = spread <= 0",
           "test_explained_variance_of_constant_returns_is_zero"),
]
# fmt: on


def is_ours(name: str) -> bool:
    return name == "rlhf_lab" or name.startswith("rlhf_lab.")


@contextmanager
def package_with(file: str, source: str) -> Iterator[None]:
    """While inside, `import rlhf_lab...` finds `source` in place of `file`, and fresh modules around it."""
    name = "rlhf_lab." + file.removesuffix(".py").replace("/", ".")
    saved = {key: sys.modules.pop(key) for key in list(sys.modules) if is_ours(key)}
    try:
        parent = importlib.import_module(name.rpartition(".")[0])
        module = sys.modules[name] = ModuleType(name)
        setattr(parent, name.rpartition(".")[2], module)
        exec(compile(source, f"mutant of {file}", "exec"), module.__dict__)
        yield
    finally:
        for key in [key for key in sys.modules if is_ours(key)]:
            del sys.modules[key]
        sys.modules.update(saved)


def cases(function: FunctionType) -> Iterator[dict[str, object]]:
    """The arguments of every parametrized case of a test function."""
    axes = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            names, rows = mark.args
            axes.append(
                [{names: row} if isinstance(names, str) else dict(zip(names, row, strict=True)) for row in rows]
            )
    for combination in itertools.product(*axes):
        yield {name: value for part in combination for name, value in part.items()}


def first_failure(file: str, source: str, test: str, request: pytest.FixtureRequest) -> BaseException | None:
    """Run one test function, all its cases, against `source` in place of `file`; fixtures come from `request`."""
    folder, _, stem = file.removesuffix(".py").rpartition("/")
    path = ROOT / "tests" / folder / f"test_{stem}.py"
    with package_with(file, source):
        module = ModuleType(path.stem)
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
        function = getattr(module, test)
        for case in cases(function):
            fixtures = [name for name in inspect.signature(function).parameters if name not in case]
            try:
                function(**case, **{name: request.getfixturevalue(name) for name in fixtures})
            except (Exception, pytest.fail.Exception) as failure:
                return failure
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_is_killed(mutant, request):
    source = (ROOT / "rlhf_lab" / mutant.file).read_text()
    found = source.count(mutant.source)
    assert found == 1, f"{mutant.source!r} stands {found} times in {mutant.file}: make the row follow the code."
    mutated = source.replace(mutant.source, mutant.mutated)
    for test in mutant.tests.split():
        failure = first_failure(mutant.file, mutated, test, request)
        assert failure is not None, f"{test} does not notice the mutant."
        assert not isinstance(failure, BROKEN), f"The mutant does not run, so {test} proves nothing: {failure!r}"


@pytest.mark.parametrize(("file", "test"), sorted({(m.file, t) for m in MUTANTS for t in m.tests.split()}))
def test_without_a_mutant_it_passes(file, test, request):
    """The control: run the same way, every named test passes on the true source."""
    failure = first_failure(file, (ROOT / "rlhf_lab" / file).read_text(), test, request)
    assert failure is None, f"{test} fails without any mutant: {failure!r}"
