"""How long a stage will take on this machine: the amount of work times rates measured here with the same model. No torch.

Measured (model_speed.py): f seconds per token of a forward pass, s(N, R) seconds to sample N responses in batches of R, and the
mean number of tokens of a text, T, and of a response, r. The work is counted in passes of a text through the layers: a forward
pass is one, a backward pass another one, because frozen weights need no gradient. If log-probabilities are needed, the vocabulary
head adds h = (its weights / those of the layers) · r / T passes.

    pairs         s(2 · pairs, all)
    reward model  s(128, 128) + f·T·(2n + 128 + fits + 2 · pairs to score)       n labels; 128 samples of the base
                  fits: on v labels for e epochs 4·e·v, forward and backward for two texts. The validation fit uses all but one
                  of `folds` parts of the labels and reads that part. The final fit, made only if the adapter helps, uses all
                  labels and reads 2n + 256 texts once more; the lower estimate is without it
    PPO step      s(B, batch_size) + f·T·B·(score + (1 + h)·(old + reference + 2 · epochs + KL of the update))   B responses
                  A reward model without an adapter reads what the reference computes: its score takes no pass. The higher
                  estimate is for one with an adapter
    PPO run       steps · PPO step, and with a KL budget s(128, batch_size) + 128·f·T for the unit of the scores and, at every
                  checkpoint, s(32, batch_size) + 32·f·T·(score + 2·(1 + h)); the samples on screen
    comparison    for each model s(texts, all), and f·T·texts if they are scored
    tournament    the same for each contestant, and 2·f·T·(1 + h)·texts for the KL of a checkpoint

All of this is multiplied by c, the median of measured over estimated seconds of the last executions of the stage here, or 1 if
there were none. So the first estimate of a stage is based on the number of operations alone, later ones on measured durations as
well. There is no estimate without measured rates, nor for a stage whose work is not counted here (trpo, several processes,
actively selected pairs) before it was measured.
"""

import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rlhf_lab.common.records import Project
from rlhf_lab.config.labelling import TEACHING_RESPONSES
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import MAX_SCORED_PAIRS, RewardConfig
from rlhf_lab.jobs import engine_process
from rlhf_lab.jobs.model_speed import ModelSpeed, load_speed
from rlhf_lab.store.database import Database

EARLY_PAIRS = 2  # of a project's first pairs: stored before the others, because a person is waiting for them
MAX_RATIO_AS_ONE = 1.25  # a range with a smaller ratio is shown as one number


class Estimate(NamedTuple):
    """Seconds. low and high differ if the amount of work is decided during the stage."""

    low: float
    high: float

    def sentence(self) -> str:
        """ "About 4 minutes on this machine." """
        return f"{self.text().capitalize()} on this machine."

    def text(self) -> str:
        """ "about 40 s", "about 8 to 14 s", "about 4 minutes", "up to 3 s"; for a narrow range the geometric mean."""
        if self.high <= MAX_RATIO_AS_ONE * self.low:
            return _about(duration_text(math.sqrt(self.low * self.high)))
        low, high = duration_text(self.low), duration_text(self.high)
        if low == high:
            return _about(low)
        if self.low < 1:
            return f"up to {high}"
        same_unit = low.partition(" ")[2] == high.partition(" ")[2]
        return _about(f"{low.partition(' ')[0] if same_unit else low} to {high}")


def _about(text: str) -> str:
    return text if text.startswith("less than") else f"about {text}"


def duration_text(seconds: float) -> str:
    """ "less than a second", "4 s", "20 s", "a minute", "4 minutes", "25 minutes", "an hour", "2.5 hours".

    Rounded, because estimates are not exact: seconds and minutes from 10 on are multiples of 5, hours have at most two digits.
    """
    if seconds < 1:
        return "less than a second"
    for unit_s, singular, plural in ((1, "1 s", "s"), (60, "a minute", "minutes")):
        count = seconds / unit_s
        if count < 52.5:
            rounded = round(count) if count < 10 else 5 * round(count / 5)
            return singular if rounded < 2 else f"{rounded} {plural}"
    hours = seconds / 3600
    if hours < 1.25:
        return "an hour"
    return f"{round(2 * hours) / 2:g} hours" if hours < 10 else f"{float(f'{hours:.2g}'):,.0f} hours"


@dataclass(frozen=True)
class WorkCount:
    """Computes the seconds of parts of a stage from the measured rates alone. Requires `speed.is_measured`."""

    speed: ModelSpeed
    max_new_tokens: int

    def sampling(self, responses: int, batch_size: int) -> float:
        """Seconds to sample this many responses, batch_size at a time."""
        whole, rest = divmod(responses, batch_size)
        return sum(
            count * self.speed.sampling_seconds(rows, self.max_new_tokens)
            for count, rows in ((whole, batch_size), (1, rest))
            if count and rows
        )

    def passes(self, texts: float, with_logprobs: float = 0.0) -> float:
        """Seconds of passes of `texts` texts through the layers, and of `with_logprobs` more with log-probabilities."""
        response = self.speed.mean_response_tokens(self.max_new_tokens)
        text = self.speed.prompt_tokens + response
        tokens = texts * text + with_logprobs * (text + self.speed.head_cost * response)
        return median(self.speed.forward) * tokens


def count_reward(work: WorkCount, config: RewardConfig, labels: int, scored_pairs: int) -> Estimate:
    """Seconds of training a reward model, from the rates; low: without the final fit of an adapter."""
    seconds = work.sampling(config.reference_samples, config.reference_samples) + work.passes(2 * scored_pairs)
    if config.warm_start:
        seconds += work.passes(2 * labels + config.reference_samples)
    is_validated = config.folds > 1 and (config.epochs > 0 or not config.warm_start)
    if is_validated:
        held_out = labels / config.folds
        readings = config.epochs if config.early_stopping else 1
        seconds += work.passes(4 * config.epochs * (labels - held_out) + 2 * readings * held_out)
    last_fit = work.passes(4 * config.epochs * labels + 2 * labels + 2 * config.reference_samples)
    if not config.warm_start or (config.epochs > 0 and not is_validated):
        return Estimate(seconds + last_fit, seconds + last_fit)
    return Estimate(seconds, seconds + (last_fit if config.epochs > 0 else 0.0))


def count_offline_step(speed: ModelSpeed, config: PolicyConfig, *, scoring_pass: bool, edits: int = 0) -> float:
    """Mean seconds of one step of an offline method, from the rates. edits: number of edited answers.

    One in `sample_every` steps measures the policy; a step of rejection sampling, or of dpo with edit_samples, includes its share
    of the texts that a round samples.
    """
    work, texts = (
        WorkCount(speed, config.max_new_tokens),
        (2 if config.spec.loss == "direct_preference" else 1) * config.label_batch,
    )
    seconds = work.passes(0, 2 * texts)
    measured = work.sampling(config.batch_size, config.batch_size) + work.passes(
        config.batch_size * scoring_pass, 2 * config.batch_size
    )
    seconds += measured / config.sample_every
    if config.spec.learns_from == "best_samples":
        candidates = config.candidates * config.texts_per_round
        seconds += (work.sampling(candidates, config.batch_size) + work.passes(candidates)) / config.updates_per_round
    elif samples := edits * config.edit_samples:
        seconds += (work.sampling(samples, config.batch_size) + work.passes(0, samples)) / config.updates_per_round
    return seconds


def count_policy_step(speed: ModelSpeed, config: PolicyConfig, *, scoring_pass: bool, edits: int = 0) -> float:
    """Seconds of one step, from the rates, without `count_held_out`. scoring_pass: whether scoring takes a pass of its own."""
    if config.is_offline:
        return count_offline_step(speed, config, scoring_pass=scoring_pass, edits=edits)
    work, responses = WorkCount(speed, config.max_new_tokens), config.responses_per_step
    has_critic = config.uses_value_function and config.value_trunk == "critic"
    passes = scoring_pass + (1 + 2 * config.epochs) * has_critic
    with_logprobs = 2 + 2 * config.epochs + config.kl_control.update_passes + (config.spec.loss == "ratio_and_penalty")
    ptx_texts = config.epochs * config.minibatches * config.ptx_batch if config.ptx_coef > 0 else 0
    seconds = work.sampling(responses, config.batch_size)
    return seconds + work.passes(passes * responses, with_logprobs * responses + 2 * ptx_texts)


def count_held_out(speed: ModelSpeed, config: PolicyConfig, *, scoring_pass: bool) -> float:
    """Seconds of the score and KL on held-out prompts at a checkpoint, from the rates."""
    work, responses = WorkCount(speed, config.max_new_tokens), config.kl_control.held_out_responses
    return work.sampling(responses, config.batch_size) + work.passes(responses * scoring_pass, 2 * responses)


def count_policy(speed: ModelSpeed, config: PolicyConfig, *, scoring_pass: bool, edits: int = 0) -> float:
    """Seconds of a run, from the rates."""
    work = WorkCount(speed, config.max_new_tokens)
    seconds = config.steps * count_policy_step(speed, config, scoring_pass=scoring_pass, edits=edits)
    checkpoints = math.ceil(config.steps / config.checkpoint_every)
    seconds += checkpoints * count_held_out(speed, config, scoring_pass=scoring_pass)
    unit_responses = config.kl_control.unit_responses
    seconds += work.sampling(unit_responses, config.batch_size) + work.passes(unit_responses)
    if config.sample_count:
        shown = work.sampling(config.sample_count, config.sample_count) + work.passes(config.sample_count)
        seconds += (1 + math.ceil(config.steps / config.sample_every)) * shown
    return seconds


# The names under which ModelSpeed stores the durations of stages.


def reward_stage(processes: int) -> str:
    return "reward model" if processes == 1 else f"reward model, {processes} processes"


def policy_stage(algorithm: str, processes: int) -> str:
    return algorithm if processes == 1 else f"{algorithm}, {processes} processes"


def pairs_stage(sampling: str) -> str:
    return f"{sampling} pairs"


def estimate_reward(
    speed: ModelSpeed | None, config: RewardConfig, labels: int, scored_pairs: int, max_new_tokens: int
) -> Estimate | None:
    """The time to train a reward model on this many labels of texts of this length and to score this many pairs with it."""
    if speed is None or not speed.is_measured:
        return None
    counted = count_reward(WorkCount(speed, max_new_tokens), config, labels, min(scored_pairs, MAX_SCORED_PAIRS))
    return _corrected(speed, reward_stage(config.processes), counted, is_counted=config.processes == 1)


def estimate_policy(speed: ModelSpeed | None, config: PolicyConfig, edits: int = 0) -> Estimate | None:
    """The time of a run; low: with a reward model without an adapter, or none. edits: number of edited answers."""
    if speed is None or not speed.is_measured:
        return None
    counted = Estimate(
        *(count_policy(speed, config, scoring_pass=scoring_pass, edits=edits) for scoring_pass in (False, True))
    )
    is_counted = config.processes == 1 and config.spec.update == "gradient"
    return _corrected(speed, policy_stage(config.algorithm, config.processes), counted, is_counted=is_counted)


def estimate_pairs(speed: ModelSpeed | None, count: int, sampling: str, max_new_tokens: int) -> Estimate | None:
    """The time to sample this many pairs of texts of this length in one job."""
    if speed is None or not speed.is_measured:
        return None
    seconds = count_pair_sampling(WorkCount(speed, max_new_tokens), count, sampling)
    is_counted = sampling in ("random", "teaching")
    return _corrected(speed, pairs_stage(sampling), Estimate(seconds, seconds), is_counted=is_counted)


def count_pair_sampling(work: WorkCount, count: int, sampling: str) -> float:
    """Seconds of sampling pairs, from the rates; where pairs are selected among more pairs, of two responses each."""
    responses = (TEACHING_RESPONSES if sampling == "teaching" else 2) * count
    return work.sampling(responses, responses) + work.passes(responses if sampling == "teaching" else 0)


def estimate_completions(
    speed: ModelSpeed | None, text_counts: Sequence[int], max_new_tokens: int, *, scored: bool, kl_texts: int = 0
) -> Estimate | None:
    """The time to sample texts from several models, one after the other.

    text_counts: texts of each model. kl_texts: number of texts whose KL to the base model is computed.
    """
    if speed is None or not speed.is_measured or not sum(text_counts):
        return None
    work = WorkCount(speed, max_new_tokens)
    seconds = sum(work.sampling(count, count) + work.passes(count if scored else 0) for count in text_counts if count)
    seconds += work.passes(0, 2 * kl_texts)
    return Estimate(seconds, seconds)


def _corrected(speed: ModelSpeed, stage: str, counted: Estimate, *, is_counted: bool) -> Estimate | None:
    """`counted` times the measured correction of the stage; None if its work is not counted here and it was never measured."""
    correction = speed.correction(stage)
    if correction is None:
        return counted if is_counted else None
    return Estimate(correction * counted.low, correction * counted.high)


def project_speed(home: Path, db: Database, project: Project) -> ModelSpeed | None:
    """The measurements of the project's model on the machine of the engine, or on this one if no engine ever ran."""
    engine = engine_process.engine_state(db).row
    return load_speed(home, engine.process.host if engine else socket.gethostname(), project.model)
