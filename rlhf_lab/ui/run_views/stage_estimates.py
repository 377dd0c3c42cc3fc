"""How long a stage will take, and whether the engine is busy with something else, as sentences to show next to the button that
starts it; "" if nothing was measured yet."""

from collections.abc import Sequence

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, EngineState, JobKind, Source
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import MAX_SCORED_PAIRS, RewardConfig
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.engine_work import work_text
from rlhf_lab.jobs.model_speed import speed_changed_at
from rlhf_lab.jobs.scheduler import MIN_PAIRS_PER_JOB
from rlhf_lab.jobs.time_estimate import (
    EARLY_PAIRS,
    Estimate,
    estimate_completions,
    estimate_pairs,
    estimate_policy,
    estimate_reward,
    project_speed,
)
from rlhf_lab.store.edited_answers import count_edits
from rlhf_lab.store.projects import count_pairs
from rlhf_lab.store.reward_scores import unjudged_pairs
from rlhf_lab.store.votes import label_count, vote_counts
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.generation_requests import texts_per_sample


def reward_sentences(ctx: Context, config: RewardConfig) -> dict[str, str]:
    """One sentence for the labels of each source; "" if there are none."""
    project = ctx.project
    speed, counts = project_speed(ctx.home, ctx.db, project), vote_counts(ctx.db, project.id)
    scored_pairs = len(unjudged_pairs(ctx.db, project.id, MAX_SCORED_PAIRS)) if speed is not None else 0
    labels = {source: label_count(counts[source]) for source in Source}
    return {
        source.value: _sentence(
            ctx,
            estimate_reward(speed, config, count, scored_pairs, project.max_new_tokens) if count else None,
            JobKind.TRAIN_REWARD,
        )
        for source, count in labels.items()
    }


def policy_sentence(ctx: Context, config: PolicyConfig) -> str:
    """Without the runs that it waits for, of which the page says so."""
    edits = count_edits(ctx.db, ctx.project.id) if config.edit_samples else 0
    speed = project_speed(ctx.home, ctx.db, ctx.project)
    return _sentence(ctx, estimate_policy(speed, config, edits), JobKind.TRAIN_POLICY)


def completions_sentence(ctx: Context, text_counts: Sequence[int], max_new_tokens: int, *, scored: bool) -> str:
    """text_counts: the texts of each model."""
    speed = project_speed(ctx.home, ctx.db, ctx.project)
    return _sentence(ctx, estimate_completions(speed, text_counts, max_new_tokens, scored=scored), JobKind.COMPLETE)


def tournament_sentence(
    ctx: Context, contestants: Sequence[str], prompt_count: int, max_new_tokens: int, *, scored: bool
) -> str:
    """contestants: as in the request of a tournament."""
    speed = project_speed(ctx.home, ctx.db, ctx.project)
    counts = [prompt_count * texts_per_sample(model) for model in contestants]
    kl_texts = prompt_count * sum(model.startswith("run/") for model in contestants)
    estimate = estimate_completions(speed, counts, max_new_tokens, scored=scored, kl_texts=kl_texts)
    return _sentence(ctx, estimate, JobKind.TOURNAMENT)


def next_pair_sentence(ctx: Context) -> str:
    """How long the next pair takes, including the time to load the model if the engine has not started yet."""
    project = ctx.project
    speed = project_speed(ctx.home, ctx.db, project)
    jobs = queue.jobs(ctx.db, project_id=project.id, kinds=[JobKind.SAMPLE_PAIRS], statuses=UNFINISHED_JOB_STATUSES)
    payload = jobs[-1].payload if jobs else {}
    has_pairs = count_pairs(ctx.db, project.id) > 0
    count = int(payload.get("count", MIN_PAIRS_PER_JOB)) if has_pairs else EARLY_PAIRS
    estimate = estimate_pairs(speed, count, str(payload.get("sampling", "random")), project.max_new_tokens)
    if speed is None or estimate is None:
        return ""
    if engine_process.engine_state(ctx.db).state is not EngineState.ALIVE:
        estimate = Estimate(*(seconds + speed.load_seconds for seconds in estimate))
    sentence = f"The {'next' if has_pairs else 'first'} pair takes {estimate.text()}."
    return sentence + busy_note(ctx, JobKind.SAMPLE_PAIRS)


def busy_note(ctx: Context, own: JobKind) -> str:
    """A sentence after an estimate while the engine does something else than jobs of the kind `own`; "" otherwise."""
    work = work_text(ctx.db, without=[own])
    return f" The engine is {work} now, so it takes longer." if work else ""


def estimates_key(ctx: Context) -> str:
    """Changes with the sentences of this file."""
    return f"{speed_changed_at(ctx.home)} {work_text(ctx.db)}"


def _sentence(ctx: Context, estimate: Estimate | None, own: JobKind) -> str:
    return "" if estimate is None else estimate.sentence() + busy_note(ctx, own)
