"""A run as JSON: what it showed at each step, to play it again, and for a page of its own also settings and blind pairs."""

import json
import random
import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from rlhf_lab.common.bundled_assets import ASSETS
from rlhf_lab.common.chat_format import Chat, turns_of_prompt
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Job, Run
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.common.stats import exact_interval
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.exporters.json_io import portable_name
from rlhf_lab.jobs import queue
from rlhf_lab.store.blind_tests import ENDED_KEY, answers, blind_tests
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.reward_model_list import accuracy_of
from rlhf_lab.store.reward_models import reward_model_of
from rlhf_lab.store.run_metrics import metric_series, samples_at, token_record_steps
from rlhf_lab.store.runs import get_run
from rlhf_lab.store.votes import voters
from rlhf_lab.ui.compare.blind_results import BlindPair, model_name, pair_texts, test_outcome
from rlhf_lab.ui.compare.blind_test.api import remaining_positions
from rlhf_lab.ui.compare.tournament.api import Ranking, ranking_of_run
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views.run_feed import MAX_POINTS, FeedReply, LiveState, feed_of
from rlhf_lab.ui.run_views.run_summary import (
    RunView,
    StepSamples,
    current_reward_model_id,
    encode_points,
    samples_at_step,
)
from rlhf_lab.ui.shared.charts import CURVES
from rlhf_lab.ui.shared.glossary import definitions
from rlhf_lab.ui.train.token_view import TokenView, token_view

MAX_PAIRS = 20
MAX_SAMPLE_STEPS = 60
MAX_TOKEN_STEPS = 12
MAX_FRAMES = 80
STEP_TIMES = ("time/rollout", "time/score", "time/update")
#: A run of the embedded model and the numbers of the screen Learn, written by benchmarks/record_run.py.
SHIPPED = ASSETS / "recording.json"


class SharedPair(TypedDict):
    """A pair to judge. texts: left and right. policy: which of them the policy wrote, 0 or 1. turns: of the prompt."""

    prompt: str
    turns: Chat
    texts: tuple[str, str]
    policy: int


class SharedSetting(TypedDict):
    name: str
    value: str
    is_changed: bool
    about: str


class RunRecording(TypedDict):
    """recorded_at: when the run was started (of a page: when it was made), in seconds since 1970. samples and tokens: by step."""

    title: str
    recorded_at: float
    model: str
    prompt_set: str
    algorithm: str
    feed: FeedReply
    samples: dict[int, StepSamples]
    tokens: dict[int, TokenView]


class Frame(LiveState):
    """What the page showed when a step had ended. seconds: that the steps since the frame before took."""

    seconds: float


class Replay(RunRecording):
    """frames: in order of their steps."""

    frames: list[Frame]


class Recording(RunRecording):
    """accuracy: of the reward model, with its interval. labelled_by: empty unless names were asked for.

    blind_test: what the lab's people preferred in the newest blind test of the run that is over, one against the base if there is
    any, or "". has_tested_pairs: whether the pairs are those of this test, not samples of the run.
    intervals: for the reader's result, by decided pairs and by those in which the policy was preferred: `exact_interval`.
    ranking: of the newest tournament in which the run took part.
    """

    curves: list[dict[str, Any]]
    settings: list[SharedSetting]
    accuracy: list[float] | None
    labelled_by: list[str]
    pairs: list[SharedPair]
    blind_test: str
    has_tested_pairs: bool
    intervals: list[list[tuple[float, float]]]
    ranking: Ranking | None
    definitions: dict[str, str]


def record_run(ctx: Context, run_id: int) -> RunRecording:
    """What everybody may see of a run under Train. Raises StoreError if there is no such run."""
    db, run = ctx.db, get_run(ctx.db, run_id)
    project, feed = get_project(db, run.project_id), feed_of(ctx).full_reply(run)
    feed["static"] = {**feed["static"], "runs": [], "reward_models": [], "tracking": ""}  # of others
    feed["status_text"] = ""  # of now; that of a run that failed can name files
    token_steps = evenly_spaced([step for step in token_record_steps(db, run.id) if step], MAX_TOKEN_STEPS)
    return {
        "title": run.name,
        "recorded_at": run.created_at,
        "model": portable_name(project.model),
        "prompt_set": portable_name(project.prompt_set),
        "algorithm": str(run.config.get("algorithm", "")),
        "feed": feed,
        "samples": {
            step: samples_at_step(db, run.id, step) for step in evenly_spaced(feed["sample_steps"], MAX_SAMPLE_STEPS)
        },
        "tokens": {step: token_view(db, run.id, step) for step in token_steps},
    }


def record_replay(ctx: Context, run_id: int) -> Replay:
    """A run as it was step by step. Raises StoreError if there is no such run, ConfigError if it has made no step."""
    recording, run = record_run(ctx, run_id), get_run(ctx.db, run_id)
    if not run.step:
        raise ConfigError(
            f"Run {run.id} has made no step, so there is nothing to replay. Resume it under Train, or choose another run."
        )
    feed, terms = recording["feed"], [metric for metric, _ in recording["feed"]["static"]["reward_terms"]]
    for metric, points in metric_series(ctx.db, run_id, terms, max_points=MAX_POINTS).items():
        feed["points"][metric] = encode_points(points)
    times = [
        point for points in metric_series(ctx.db, run_id, STEP_TIMES, max_points=10**9).values() for point in points
    ]
    frames: list[Frame] = []
    before = 0
    for step, state in feed_of(ctx).states_at(run, evenly_spaced(range(1, run.step + 1), MAX_FRAMES)).items():
        seconds = sum(value for at, value in times if before < at <= step)
        frames.append({**state, "seconds": round(seconds, 2)})
        before = step
    return {**recording, "frames": frames}


@cache
def shipped() -> dict[str, Any]:
    """The content of SHIPPED: "replay", "learn", and "about" with date and settings."""
    content: dict[str, Any] = json.loads(SHIPPED.read_bytes())
    return content


def shipped_replay() -> Replay:
    return TypeAdapter(Replay).validate_python(shipped()["replay"])


def record(ctx: Context, run_id: int, *, names: bool = False) -> Recording:
    """Everything that the page of a run shows. names: whether the people who labelled are named. Raises StoreError if there is no
    such run."""
    db, run = ctx.db, get_run(ctx.db, run_id)
    recording = record_run(ctx, run_id)
    steps = list(recording["samples"])
    reward_model = reward_model_of(db, current_reward_model_id(RunView.load(db, run)))
    tests = list(finished_tests(ctx, run))
    test = next((test for test in tests if pairs_of_test(test, run.id)), tests[0] if tests else None)
    tested_pairs = pairs_of_test(test, run.id) if test else []
    pairs = tested_pairs or (blind_pairs(db, run.id, steps[-1]) if steps and steps[-1] else [])
    accuracy = [value for value in accuracy_of(reward_model.report if reward_model else {}) if value is not None]
    return {
        **recording,
        "recorded_at": time.time(),
        "curves": [
            curve._asdict()
            | ({"unit": ""} if curve.metric in recording["feed"]["static"].get("without_unit", ()) else {})
            for curve in CURVES
        ],
        "settings": settings_of(run),
        "accuracy": accuracy if len(accuracy) == 3 else None,
        "labelled_by": voters(db, run.project_id, Source.HUMAN) if names else [],
        "pairs": pairs,
        "blind_test": outcome_text(test) if test else "",
        "has_tested_pairs": bool(tested_pairs),
        "intervals": [[exact_interval(wins, count) for wins in range(count + 1)] for count in range(len(pairs) + 1)],
        "ranking": ranking_of_run(ctx, run),
        "definitions": definitions(),
    }


def evenly_spaced(steps: Sequence[int], most: int) -> list[int]:
    """At most so many of the steps, evenly spread, with the first and the last."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def settings_of(run: Run) -> list[SharedSetting]:
    """The settings that the run's algorithm reads."""
    config = PolicyConfig.from_dict(run.config)
    recommended = PolicyConfig.for_algorithm(config.algorithm)
    return [
        {
            "name": item.name, "value": str(getattr(config, item.name)), "about": item.help,
            "is_changed": getattr(config, item.name) != getattr(recommended, item.name),
        }
        for item in fields_of(PolicyConfig) if item.applies_to(config.algorithm)
    ]  # fmt: skip


class FinishedTest(NamedTuple):
    """A blind test with answers, not skips alone, that nobody judges any more: its jobs, pairs by position, and answers by
    person."""

    jobs: tuple[Job, Job]
    pairs: dict[int, BlindPair]
    answers: dict[str, dict[int, Choice]]


def finished_tests(ctx: Context, run: Run) -> Iterator[FinishedTest]:
    """Those of the run, newest first. A page shows the pairs and who wrote them, so nobody may have to judge them still: the
    operator has ended the test, or it is that of the only person in the lab, who has judged all pairs."""
    for test in blind_tests(ctx.db, run.project_id):
        first, second = (queue.get_job(ctx.db, job_id) for job_id in (test.first_job, test.second_job))
        given, pairs = answers(ctx.db, test.id), pair_texts(first, second)
        has_answers = any(choice is not Choice.SKIP for choices in given.values() for choice in choices.values())
        if not has_answers or not pairs or not any(_is_of_run(job, run.id) for job in (first, second)):
            continue
        is_alone = not ctx.access.is_multi_user and len(given) == 1
        if first.payload.get(ENDED_KEY) or (is_alone and not remaining_positions(pairs, *given.values())):
            yield FinishedTest((first, second), pairs, given)


def _is_of_run(job: Job, run_id: int) -> bool:
    return str(job.payload.get("checkpoint", "")).startswith(f"run/{run_id}/")


def outcome_text(test: FinishedTest) -> str:
    names = [model_name(job.payload) for job in test.jobs]
    return " ".join(test_outcome(test.pairs, test.answers, "", names, None)["sentences"])


def pairs_of_test(test: FinishedTest, run_id: int) -> list[SharedPair]:
    """All pairs that were judged, on random sides; [] for a test that compared the run with something else than the base."""
    runs_side = [_is_of_run(job, run_id) for job in test.jobs]
    is_base = [job.payload.get("checkpoint") == "base" and not job.payload.get("best_of") for job in test.jobs]
    if sorted(runs_side) != [False, True] or is_base[runs_side.index(False)] is False:
        return []
    sides, pairs = random.Random(derive_seed(run_id, "shared pairs")), list[SharedPair]()
    for pair in test.pairs.values():
        if not pair.has_equal_texts:
            texts = (pair.first, pair.second)
            pairs.append(shared_pair(pair.prompt, texts[runs_side.index(True)], texts[runs_side.index(False)], sides))
    return pairs


def blind_pairs(db: Database, run_id: int, step: int) -> list[SharedPair]:
    """The samples of a step beside those of the base, on random sides; pairs of equal texts are left out."""
    base = {(sample.prompt, sample.seed): sample.text.strip() for sample in samples_at(db, run_id, 0)}
    sides, pairs = random.Random(derive_seed(run_id, "shared pairs")), list[SharedPair]()
    for sample in samples_at(db, run_id, step):
        text, other = sample.text.strip(), base.get((sample.prompt, sample.seed))
        if other is not None and other != text:
            pairs.append(shared_pair(sample.prompt, text, other, sides))
    return pairs[:MAX_PAIRS]


def shared_pair(prompt: str, policy_text: str, base_text: str, sides: random.Random) -> SharedPair:
    policy = sides.randrange(2)
    texts = (policy_text, base_text) if policy == 0 else (base_text, policy_text)
    return {"prompt": prompt, "turns": turns_of_prompt(prompt), "texts": texts, "policy": policy}
