"""A small lab: a project, votes on texts that are hard to encode, and a run with three steps."""

import math
import shutil

import pytest
from support.databases import undo_vote

from rlhf_lab.common.enums import Choice, EventKind, Source
from rlhf_lab.common.records import NewCompletion, Sample, StepResult, Vote
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import add_event, create_run, get_run, mark_event_applied, set_manifest
from rlhf_lab.store.votes import cast_vote

HOSTILE = (
    'line one\nline "two"\r\n\ttab, comma; \\n \u2028\u2029\x85 '
    "\u202eשלום مرحبا\u202c 👩‍👩‍👧 e\u0301 \x0b\x7f</script> =1+1"
)


@pytest.fixture
def home(tmp_path, empty_home):
    return shutil.copytree(empty_home, tmp_path / "home")


@pytest.fixture
def db(home):
    with Database.open(home) as opened:
        yield opened


@pytest.fixture
def project(db):
    return projects.create_project(
        db, "tales", "/data/models/tiny", "abc", "tales", 7, [("Once", "train"), (HOSTILE, "train"), ("Far", "eval")]
    )


@pytest.fixture
def voted(db, project):
    """Pairs 1 … 6 and the votes 1 … 7 on them, among them an undone one, a skip and a judge's."""
    once, hostile = projects.prompts(db, project.id, "train")

    def pair(prompt, first, second):
        new = [
            NewCompletion(prompt.id, first, (4, 0), "base", 11),
            NewCompletion(prompt.id, second, (5, 6, 0), "run/1/5", 12),
        ]
        a, b = projects.add_completions(db, new)
        return projects.add_pairs(db, project.id, [(a.id, b.id, "random")])[0].id

    def vote(number, pair_id, choice, annotator="ann", source=Source.HUMAN, **more):
        cast_vote(db, Vote(f"u{number}", pair_id, annotator, source, choice, number % 2 == 1, created_at=100.5, **more))

    pairs = [pair(once, f" a{i}", f" b{i}") for i in range(1, 6)] + [pair(hostile, HOSTILE, HOSTILE[::-1])]
    vote(1, pairs[0], Choice.FIRST, response_ms=1200)
    vote(2, pairs[1], Choice.SECOND)
    vote(3, pairs[2], Choice.TIE, annotator="bob")
    vote(4, pairs[3], Choice.SKIP)
    vote(5, pairs[4], Choice.FIRST)
    undo_vote(db, project.id, "ann")
    vote(6, pairs[4], Choice.BOTH_BAD)
    vote(7, pairs[5], Choice.SECOND, annotator="judge:polite", source=Source.SIMULATED)
    return pairs


@pytest.fixture
def run(db, project, voted):
    """Three steps; NaN, a metric that starts late, samples at steps 0 and 2, a changed setting."""
    model = add_reward_model(
        db, project.id, "reward_models/r1", config={"epochs": 2}, report={"accuracy": math.nan},
        snapshot=snapshot_labels(db, project.id, Source.HUMAN),
    )  # fmt: skip
    new_run = create_run(
        db, project.id, model.id, "my run", config={"algorithm": "ppo", "beta": 0.1}, manifest={}, total_steps=8
    )
    set_manifest(
        db,
        new_run.id,
        {
            "judge": "/data/judges/mine.py:nice",
            "machine": {"backbone": "/data/models/tiny", "threads": 2},
            "tracker": {"name": "wandb", "project": "p", "route": {"WANDB_DIR": "/data/wandb"}},
        },
    )
    base = [Sample("Once", 3, " base", 0.25), Sample(HOSTILE, 4, HOSTILE, math.nan)]
    record_step(db, new_run.id, StepResult(0, {}, samples=base))
    record_step(
        db, new_run.id, StepResult(1, {"objective/kl": 0.1, "lr": 6e-4, "time/rollout": 2.0, "time/update": 0.5})
    )
    late_samples = [Sample("Once", 3, " later", 1.5, gold=2.0)]
    metrics = {"objective/kl": math.nan, "lr": 3e-4, "time/rollout": 2.0, "time/update": 0.5}
    record_step(db, new_run.id, StepResult(2, metrics, samples=late_samples))
    record_step(db, new_run.id, StepResult(3, {"objective/kl": -1e-7, "lr": 0.0, "grad_norm": math.inf}))
    mark_event_applied(db, add_event(db, new_run.id, EventKind.SET, {"name": "beta", "value": 0.2}).id, 2)
    return get_run(db, new_run.id)


@pytest.fixture
def out(tmp_path):
    yield tmp_path / "out"
    shutil.rmtree(tmp_path / "out", ignore_errors=True)


def names(folder):
    """Every file under a folder, hidden ones too."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.fixture(name="names")
def _names():
    return names


@pytest.fixture
def hostile():
    return HOSTILE
