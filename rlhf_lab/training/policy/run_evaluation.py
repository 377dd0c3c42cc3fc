"""Measurements of a run with a KL budget: the unit of its scores, and score and KL of the policy on held-out prompts.

They depend only on the seed, the prompts and the weights, so a resumed run measures the same. All processes take part.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.kl_control import HELD_OUT_RESPONSES, UNIT_RESPONSES
from rlhf_lab.core.reward_scaling import RunningMoments
from rlhf_lab.models.sampling.sampler import sample, uniforms
from rlhf_lab.training.policy.invariants import check_scores
from rlhf_lab.training.policy.kl_control import ScoreUnit, updated_best
from rlhf_lab.training.policy.live_reward import LIVE_UNIT
from rlhf_lab.training.policy.rollout import Scorer, score_responses, sequence_log_ratios
from rlhf_lab.training.policy.train_state import TrainState

CONSTANT_SD = 1e-6  # scores of a smaller standard deviation differ by rounding alone


def measure_score_unit(state: TrainState, prompt_ids: Sequence[list[int]], scorer: Scorer) -> ScoreUnit:
    """Mean and sd of the reference's scores on the training prompts, at the run's own length and temperature.

    The scores of a live run are in this unit already; here they get the responses on which each head is brought to it.
    """
    prompts = [prompt_ids[i % len(prompt_ids)] for i in range(UNIT_RESPONSES)]
    tokens = _sample_responses(state, prompts, state.policy.reference, "score unit")
    if state.live is not None:
        state.live.set_reference(state.live.read(prompts, tokens, state.on_progress))
        return LIVE_UNIT

    def local_scores(rows: slice) -> Tensor:
        return scorer.scores(prompts[rows], tokens[rows], state.on_progress)

    moments = RunningMoments()
    scores = state.distributed.map_rows(len(prompts), local_scores).double().cpu()
    sd = moments.update(scores)
    is_constant = sd <= CONSTANT_SD * max(1.0, abs(moments.mean))  # a reward function may give every text the same
    return ScoreUnit(sd=1.0 if is_constant else sd, mean=moments.mean)


def evaluate_held_out(state: TrainState, prompt_ids: Sequence[list[int]], scorer: Scorer) -> dict[str, float]:
    """Score and KL of the policy on held-out prompts, with the same random numbers at every step; updates the best checkpoint."""
    prompts = [prompt_ids[i % len(prompt_ids)] for i in range(HELD_OUT_RESPONSES)]
    tokens = _sample_responses(state, prompts, state.policy.adapter, "held out")
    config, control, on_progress = state.config, state.kl_control, state.on_progress
    scored = score_responses(state.policy, scorer, prompts, tokens, config, on_progress, state.distributed)
    unit = control.score_unit or ScoreUnit(0.0, 1.0)
    scores = scored.scores.double().cpu()
    check_scores(scores, state.steps_done)
    scores = (scores - unit.mean) / unit.sd
    score, standard_error = float(scores.mean()), float(scores.std()) / math.sqrt(len(scores))
    log_ratios = sequence_log_ratios(
        state.policy, prompts, tokens, config.temperature, on_progress, scored.ref_logprobs
    )
    kl = float(log_ratios.mean())
    if control.accepts(kl) and state.live is not None:
        state.live.held_out[state.steps_done] = state.live.read(prompts, tokens, on_progress)
        control.best = state.live.best_checkpoint()
    elif control.accepts(kl):
        control.best = updated_best(control.best, state.steps_done, score, standard_error)
    metrics = {"eval/scores": score, "eval/kl": kl}
    return metrics if control.best is None else metrics | {"eval/best_step": float(control.best.step)}


def _sample_responses(
    state: TrainState, prompts: list[list[int]], adapter: str | None, purpose: str
) -> list[list[int]]:
    """A response to each prompt by the adapter (None: the backbone)."""
    config, policy = state.config, state.policy
    tokens: list[list[int]] = []

    def sample_rows(rows: slice) -> list[list[int]]:
        """Responses to some rows of the batch that begins after those in `tokens`."""
        start = len(tokens)
        chunk = prompts[start : start + config.batch_size]
        seeds = [derive_seed(config.seed, purpose, start + row) for row in range(rows.start, rows.stop)]
        return sample(
            policy.backbone, chunk[rows], uniforms(seeds, config.max_new_tokens), temperature=config.temperature,
            on_progress=state.sampling_progress(start, len(chunk), len(prompts)),
        ).tokens  # fmt: skip

    with policy.adapters.using(adapter, merged=adapter is not None):
        while len(tokens) < len(prompts):
            tokens += state.distributed.gather_rows(min(config.batch_size, len(prompts) - len(tokens)), sample_rows)
    state.on_sampling(len(prompts), len(prompts))
    return tokens
