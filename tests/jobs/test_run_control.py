"""The controls of a run, and invalid ones, which are refused before anything is recorded. No engine runs here."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_lab.common.enums import Choice, EventKind, JobKind, JobStatus, RunStatus, Source
from rlhf_lab.common.model_files import HEAD_CONFIG
from rlhf_lab.common.paths import ptx_texts_file
from rlhf_lab.common.records import LabelSnapshot, NewCompletion, Run, Vote
from rlhf_lab.config.policy import PRESETS, PolicyConfig
from rlhf_lab.errors import ConfigError, LabelError, StoreError
from rlhf_lab.jobs import engine_process, queue, run_control, run_lock
from rlhf_lab.rewards.terms import RewardTerm
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run, events, get_run, pending_events, runs, set_run_status
from rlhf_lab.store.votes import cast_vote

CONFIG = PolicyConfig(steps=8)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The homes for which an engine was requested; none is started."""
    homes: list[Path] = []
    monkeypatch.setattr(engine_process, "ensure_engine", lambda db, home: homes.append(home))
    return homes


def project(db: Database) -> int:
    texts = [("Once", "train"), ("There", "train"), ("Far", "eval")]
    return projects.create_project(db, "tales", "assets/model", "abc", "tales", 7, texts).id


def label(db: Database, project_id: int, annotator: str, source: Source, choice: Choice = Choice.FIRST) -> None:
    """A vote on a new pair."""
    prompt = projects.prompts(db, project_id, "train")[0]
    a, b = projects.add_completions(db, [NewCompletion(prompt.id, text, (1, 2), "base", 0) for text in "ab"])
    (pair,) = projects.add_pairs(db, project_id, [(a.id, b.id, "random")])
    cast_vote(db, Vote(str(uuid.uuid4()), pair.id, annotator, source, choice, True))


def reward_model(db: Database, project_id: int, *annotators: str, source: Source = Source.SIMULATED) -> int:
    """A reward model of a label by each of these annotators."""
    for annotator in annotators:
        label(db, project_id, annotator, source)
    pinned = snapshot_labels(db, project_id, source)
    return add_reward_model(db, project_id, "reward_models/x", config={}, report={}, snapshot=pinned).id


@pytest.fixture
def run(db: Database) -> Run:
    """A queued run with no job."""
    project_id = project(db)
    model = reward_model(db, project_id)
    return create_run(db, project_id, model, "first", config=CONFIG.to_dict(), manifest={}, total_steps=8)


def submit(db: Database, run: Run) -> int:
    return queue.submit(db, JobKind.TRAIN_POLICY, run.project_id, {"run_id": run.id}).id


def kinds(db: Database, run: Run) -> list[EventKind]:
    return [event.kind for event in events(db, run.id)]


def test_starting_a_run_queues_a_job_and_starts_an_engine(db: Database, home: Path, started: list[Path]) -> None:
    project_id = project(db)
    old, new = reward_model(db, project_id), reward_model(db, project_id, "judge:polite")
    run = run_control.start_run(db, home, project_id, CONFIG, name="  My\n run ")
    assert (run.reward_model_id, run.name, run.status, run.total_steps) == (new, "My run", RunStatus.QUEUED, 8)
    assert PolicyConfig.from_dict(get_run(db, run.id).config) == CONFIG
    assert run.manifest["judge"] == "polite"
    assert run.manifest["labels"]["vote_ids"] == (1,)
    job = run_control.open_job(db, run.id)
    assert job is not None
    assert (job.kind, job.status, job.payload) == (JobKind.TRAIN_POLICY, JobStatus.QUEUED, {"run_id": run.id})
    assert started == [home]
    second = run_control.start_run(db, home, project_id, CONFIG, reward_model_id=old, judge="gloomy")
    assert (second.reward_model_id, second.name) == (
        old,
        f"ppo on reward model {old}, steps 8, epochs 2, minibatches 2, and 6 more",
    )
    assert second.manifest["judge"] == "gloomy"


@pytest.mark.parametrize(
    ("annotators", "source", "judge"),
    [
        (["judge:polite", "judge:polite"], Source.SIMULATED, "polite"),
        (["judge:polite", "judge:gloomy"], Source.SIMULATED, None),
        (["judge:mine"], Source.SIMULATED, None),  # from a file that the labels do not name
        (["judge:polite"], Source.HUMAN, None),  # a person who calls himself so
    ],
)
def test_the_judge_of_the_reward_models_labels_gives_the_gold_score(
    db: Database, home: Path, started: list[Path], annotators: list[str], source: Source, judge: str | None
) -> None:
    project_id = project(db)
    reward_model(db, project_id, *annotators, source=source)
    assert run_control.start_run(db, home, project_id, CONFIG).manifest["judge"] == judge


def test_a_run_without_a_name_is_named_by_what_differs(db: Database, home: Path, started: list[Path]) -> None:
    """By algorithm, reward model and the settings that differ from the nearest preset; a number tells equal ones apart."""
    project_id = project(db)
    first = reward_model(db, project_id, "judge:polite")
    second = reward_model(db, project_id, "judge:gloomy")

    def name(config: PolicyConfig, reward_model_id: int = first) -> str:
        return run_control.start_run(db, home, project_id, config, reward_model_id=reward_model_id).name

    lab = PolicyConfig.for_algorithm("ppo")
    assert name(lab) == f"ppo on reward model {first}"
    assert name(lab) == f"ppo on reward model {first} (2)"
    assert name(lab) == f"ppo on reward model {first} (3)"
    assert name(lab, second) == f"ppo on reward model {second}"
    assert name(lab.replace(beta=0.3, lr=5e-4)) == f"ppo on reward model {first}, lr 0.0005, beta 0.3"
    assert name(lab.replace(scale_scores=True)) == f"ppo on reward model {first}, scale_scores on"
    assert name(lab.replace(cliprange=None)) == f"ppo on reward model {first}, cliprange none"
    assert name(PolicyConfig.for_algorithm("grpo")) == f"grpo on reward model {first}"
    gentle = PolicyConfig.for_algorithm("ppo", **PRESETS["gentle"])
    assert name(gentle) == f"ppo on reward model {first}, gentle"
    assert name(gentle.replace(seed=3)) == f"ppo on reward model {first}, gentle, seed 3"


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ('{"adapter": true, "layers": "all"}', "reads all layers"),
        ('{"adapter": false, "layers": "last"}', "has no adapter"),
        ('{"adapter": true, "layers": "last"}', None),
        ('{"adapter": true}', None),  # from a version without heads of all layers
        ("damaged", None),  # the engine says so
    ],
)
def test_a_critic_that_cannot_start_as_the_reward_model_is_refused(
    db: Database, home: Path, started: list[Path], head: str, problem: str | None
) -> None:
    project_id = project(db)
    reward_model(db, project_id)
    folder = home / "reward_models" / "x"
    folder.mkdir(parents=True)
    (folder / HEAD_CONFIG).write_text(head)
    config = CONFIG.replace(value_trunk="critic", critic_init="reward")
    if problem is None:
        assert run_control.start_run(db, home, project_id, config).config["critic_init"] == "reward"
        return
    with pytest.raises(ConfigError, match=f"{problem}. Choose critic_init = fresh"):
        run_control.start_run(db, home, project_id, config)
    assert (runs(db), started) == ([], [])
    run_control.start_run(db, home, project_id, config.replace(critic_init="fresh"))


def test_a_name_with_many_settings_is_cut_to_the_longest_name_and_stays_distinct(
    db: Database, home: Path, started: list[Path]
) -> None:
    project_id = project(db)
    reward_model(db, project_id, "judge:polite")
    config = PolicyConfig.for_algorithm("ppo").replace(
        steps=80, lr=1e-3, lr_schedule="cosine", adam_eps=1e-6, seed=5, batch_size=64, epochs=3
    )
    first, second = (run_control.start_run(db, home, project_id, config).name for _ in range(2))
    assert first == "ppo on reward model 1, steps 80, lr 0.001, lr_schedule cosine, and 4 more"
    assert second == f"{first} (2)"
    assert len(second) <= run_control.MAX_RUN_NAME_CHARS


def test_a_run_that_cannot_start_leaves_no_row(db: Database, home: Path, started: list[Path]) -> None:
    project_id, other = project(db), project(db)
    with pytest.raises(LabelError, match="train-reward"):
        run_control.start_run(db, home, project_id, CONFIG)
    other_db = reward_model(db, other)
    with pytest.raises(LabelError, match=f"has no reward model {other_db}"):
        run_control.start_run(db, home, project_id, CONFIG, reward_model_id=other_db)
    with pytest.raises(StoreError, match="no reward model 99"):
        run_control.start_run(db, home, project_id, CONFIG, reward_model_id=99)
    reward_model(db, project_id)
    with pytest.raises(ConfigError, match="nobody"):
        run_control.start_run(db, home, project_id, CONFIG, judge="nobody")
    with pytest.raises(ConfigError, match="80 characters"):
        run_control.start_run(db, home, project_id, CONFIG, name="x" * 81)
    with pytest.raises(ConfigError, match="ptx_coef is 0"):
        run_control.start_run(db, home, project_id, CONFIG, ptx_texts=(["a text"], "mine.txt"))
    (home / "runs").write_text("in the way of the run's folder")
    with pytest.raises(StoreError, match="was not started"):
        run_control.start_run(db, home, project_id, CONFIG.replace(ptx_coef=0.1), ptx_texts=(["a text"], "mine.txt"))
    assert (runs(db), queue.jobs(db), started) == ([], [], [])


@pytest.mark.parametrize("algorithm", ["dpo", "sft"])
def test_labels_alone_are_enough_for_dpo_and_sft(db: Database, home: Path, started: list[Path], algorithm: str) -> None:
    """A tie is no preference; a reward model is used where there is one, unless none was chosen."""
    project_id, config = project(db), PolicyConfig.for_algorithm(algorithm, steps=8)
    refusal = f"{algorithm} learns from labels, and in project {project_id} none prefers a text. Label some pairs first"
    with pytest.raises(LabelError, match=refusal):
        run_control.start_run(db, home, project_id, config)
    label(db, project_id, "ann", Source.HUMAN, Choice.TIE)
    with pytest.raises(LabelError, match=refusal):
        run_control.start_run(db, home, project_id, config)
    label(db, project_id, "ann", Source.HUMAN)
    label(db, project_id, "judge:polite", Source.SIMULATED)
    run = run_control.start_run(db, home, project_id, config)
    assert (run.reward_model_id, run.manifest["judge"]) == (None, None)
    assert LabelSnapshot.from_record(get_run(db, run.id).manifest["labels"]) == LabelSnapshot(
        (1, 2), snapshot_labels(db, project_id, Source.HUMAN).digest, Source.HUMAN
    )
    assert run.name == f"{algorithm} on labels alone, steps 8"
    term = RewardTerm("json", 0.5)
    measured = run_control.start_run(db, home, project_id, config, reward_terms=[term])
    assert (measured.reward_model_id, "labels" in measured.manifest) == (None, True)
    model = reward_model(db, project_id, "judge:polite")
    assert run_control.start_run(db, home, project_id, config).reward_model_id == model
    none = run_control.NO_REWARD_MODEL
    assert run_control.start_run(db, home, project_id, config, none).reward_model_id is None
    with pytest.raises(StoreError, match="no reward model 0"):
        run_control.start_run(db, home, project_id, CONFIG, none)


def test_the_judge_of_simulated_labels_gives_the_gold_score_without_a_reward_model(
    db: Database, home: Path, started: list[Path]
) -> None:
    project_id = project(db)
    label(db, project_id, "judge:polite", Source.SIMULATED)
    run = run_control.start_run(db, home, project_id, PolicyConfig.for_algorithm("dpo"))
    assert (run.reward_model_id, run.manifest["judge"]) == (None, "polite")


def test_custom_pretraining_texts_are_stored_in_the_run_folder(db: Database, home: Path, started: list[Path]) -> None:
    project_id = project(db)
    reward_model(db, project_id)
    recorded = ["Once,\nthere was", "a wolf ✓"]
    run = run_control.start_run(
        db, home, project_id, CONFIG.replace(ptx_coef=0.1), ptx_texts=(recorded, "tales.csv:story")
    )
    assert run.manifest["ptx_texts"] == {"source": "tales.csv:story", "count": 2}
    assert json.loads(ptx_texts_file(home, run.id).read_text()) == recorded


def test_pause_and_stop_of_a_run_that_an_engine_works_on(
    db: Database, run: Run, engine_row: Callable[..., int]
) -> None:
    submit(db, run)
    queue.claim(db, [JobKind.TRAIN_POLICY], engine_row())
    set_run_status(db, run.id, RunStatus.RUNNING)
    run_control.pause(db, run.id)
    run_control.stop(db, run.id)
    assert [event.kind for event in pending_events(db, run.id)] == [EventKind.PAUSE, EventKind.STOP]
    assert get_run(db, run.id).status is RunStatus.RUNNING  # the engine says when it has


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.INTERRUPTED])
def test_a_run_that_waits_for_an_engine_is_stopped_at_once(
    db: Database, home: Path, run: Run, started: list[Path], status: RunStatus
) -> None:
    job = submit(db, run)
    set_run_status(db, run.id, status)
    run_control.stop(db, run.id)
    assert get_run(db, run.id).status is RunStatus.STOPPED
    assert queue.get_job(db, job).status is JobStatus.CANCELLED
    assert pending_events(db, run.id) == []
    run_control.delete(db, home, run.id)
    assert runs(db) == []


@pytest.mark.parametrize("status", [RunStatus.STOPPED, RunStatus.FAILED, RunStatus.INTERRUPTED, RunStatus.DONE])
def test_an_ended_run_can_be_neither_paused_nor_stopped(db: Database, run: Run, status: RunStatus) -> None:
    set_run_status(db, run.id, status)
    with pytest.raises(StoreError, match=f"is {status.value} and cannot be paused"):
        run_control.pause(db, run.id)
    with pytest.raises(StoreError, match=f"is {status.value} and cannot be stopped"):
        run_control.stop(db, run.id)
    assert events(db, run.id) == []


def test_resume_of_a_paused_run_is_an_event(db: Database, home: Path, run: Run, started: list[Path]) -> None:
    job = submit(db, run)
    set_run_status(db, run.id, RunStatus.PAUSED)
    run_control.resume(db, home, run.id)
    assert kinds(db, run) == [EventKind.RESUME]
    assert [result.id for result in queue.jobs(db)] == [job]
    assert started == [home]  # the one that paused may be dead


@pytest.mark.parametrize("status", [RunStatus.STOPPED, RunStatus.FAILED, RunStatus.INTERRUPTED, RunStatus.QUEUED])
def test_resume_of_an_ended_run_is_a_new_job_that_an_old_stop_does_not_halt(
    db: Database, home: Path, run: Run, started: list[Path], engine_row: Callable[..., int], status: RunStatus
) -> None:
    first = submit(db, run)
    queue.claim(db, [JobKind.TRAIN_POLICY], engine_row())
    set_run_status(db, run.id, RunStatus.RUNNING)
    run_control.stop(db, run.id)
    run_control.stop(db, run.id)  # a second click, which never reached the engine
    run_control.set_live_setting(db, run.id, "beta", 0.5)
    queue.finish(db, first, {})
    set_run_status(db, run.id, status)
    run_control.resume(db, home, run.id)
    assert [event.kind for event in pending_events(db, run.id)] == [EventKind.SET]
    job = run_control.open_job(db, run.id)
    assert job is not None
    assert job.id > first
    assert run_control.last_job(db, run.id) == job
    assert started == [home]


def test_two_resumes_at_once_make_one_job(
    db: Database, home: Path, run: Run, started: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the second job would go on with the run after it was stopped."""
    set_run_status(db, run.id, RunStatus.STOPPED)
    monkeypatch.setattr(run_control, "open_job", lambda *_: None)  # both have looked before either submits
    run_control.resume(db, home, run.id)
    run_control.resume(db, home, run.id)
    assert [job.payload for job in queue.jobs(db)] == [{"run_id": run.id}]


def test_a_run_is_resumed_in_another_number_of_processes(
    db: Database, home: Path, run: Run, started: list[Path]
) -> None:
    """The config has the process count of the start, a note the current one, which the next resume uses."""
    for requests, expected in ((None, 1), (2, 2), (None, 2), (2, 2), (1, 1)):
        set_run_status(db, run.id, RunStatus.STOPPED)
        run_control.resume(db, home, run.id, requests)
        assert run_control.process_count(db, get_run(db, run.id)) == expected
        queue.cancel(db, queue.jobs(db)[0].id)
    notes = [event.payload for event in pending_events(db, run.id)]
    assert notes == [
        {"words": "processes 1 → 2", "processes": 2},
        {"words": "processes 2 → 1", "processes": 1},
    ]
    assert get_run(db, run.id).config == CONFIG.to_dict()


def test_processes_that_a_run_cannot_have_are_refused(
    db: Database, home: Path, run: Run, started: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_run_status(db, run.id, RunStatus.STOPPED)
    with pytest.raises(ConfigError, match="leaves some of 64 processes without a response"):
        run_control.resume(db, home, run.id, 64)
    config = CONFIG.replace(processes=2, shard_backbone=True).to_dict()
    sharded = create_run(db, run.project_id, run.reward_model_id, "b", config=config, manifest={}, total_steps=8)
    with pytest.raises(ConfigError, match="Choose processes = 2 or more"):
        run_control.resume(db, home, sharded.id, 1)
    assert (queue.jobs(db), events(db, run.id), events(db, sharded.id)) == ([], [], [])
    submit(db, run)
    with pytest.raises(StoreError, match="is stopped: stop it, then resume it with another number"):
        run_control.resume(db, home, run.id, 2)
    set_run_status(db, sharded.id, RunStatus.PAUSED)
    monkeypatch.setattr(run_lock, "is_locked", lambda *_: True)
    with pytest.raises(StoreError, match="is paused: stop it, then"):
        run_control.resume(db, home, sharded.id, 3)
    assert (events(db, run.id), events(db, sharded.id)) == ([], [])


def test_a_run_that_is_done_is_not_resumed(db: Database, home: Path, run: Run, started: list[Path]) -> None:
    set_run_status(db, run.id, RunStatus.DONE)
    with pytest.raises(StoreError, match="all its 8 steps"):
        run_control.resume(db, home, run.id)
    assert (queue.jobs(db), started) == ([], [])


@pytest.mark.parametrize("status", [s for s in RunStatus if s is not RunStatus.DONE])
def test_a_live_setting_can_be_changed_until_a_run_is_done(db: Database, run: Run, status: RunStatus) -> None:
    set_run_status(db, run.id, status)
    run_control.set_live_setting(db, run.id, "lr", 1)
    (event,) = events(db, run.id)
    assert (event.kind, event.payload, event.applied_step) == (EventKind.SET, {"name": "lr", "value": 1.0}, None)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("lr", 0.0, "lr = 0.0 is below the minimum"),
        ("lr", 1.5, "above the maximum"),
        ("beta", -0.1, "beta = -0.1 is below"),
        ("beta", float("nan"), "not a finite number"),
        ("beta", float("inf"), "not a finite number"),
        ("gamma", 0.9, "only beta and lr can"),
        ("nonsense", 1.0, "only beta and lr can"),
    ],
)
def test_an_invalid_live_setting_is_refused_before_it_is_recorded(
    db: Database, run: Run, name: str, value: float, match: str
) -> None:
    set_run_status(db, run.id, RunStatus.RUNNING)
    with pytest.raises(ConfigError, match=match):
        run_control.set_live_setting(db, run.id, name, value)
    assert events(db, run.id) == []


def test_a_live_setting_of_a_done_run_is_refused(db: Database, run: Run) -> None:
    set_run_status(db, run.id, RunStatus.DONE)
    with pytest.raises(StoreError, match="is done and cannot be changed"):
        run_control.set_live_setting(db, run.id, "beta", 0.2)
    with pytest.raises(StoreError, match="is done and cannot be changed"):
        run_control.switch_reward_model(db, run.id, run.reward_model_id)


def test_the_reward_model_is_switched_within_the_project_only(db: Database, run: Run) -> None:
    own_model, foreign_model = reward_model(db, run.project_id), reward_model(db, project(db))
    run_control.switch_reward_model(db, run.id, own_model)
    with pytest.raises(ConfigError, match="another project"):
        run_control.switch_reward_model(db, run.id, foreign_model)
    with pytest.raises(StoreError, match="no reward model 99"):
        run_control.switch_reward_model(db, run.id, 99)
    (event,) = events(db, run.id)
    assert (event.kind, event.payload) == (EventKind.SWITCH_REWARD, {"reward_model_id": own_model})


def test_a_run_is_renamed(db: Database, run: Run) -> None:
    run_control.rename(db, run.id, " better\tname ")
    assert get_run(db, run.id).name == "better name"
    for bad in ("", " \n ", "x" * 81):
        with pytest.raises(ConfigError, match="1 to 80 characters"):
            run_control.rename(db, run.id, bad)
    assert get_run(db, run.id).name == "better name"


def test_a_run_is_deleted_with_its_files_and_no_other(db: Database, home: Path, run: Run) -> None:
    other = create_run(db, run.project_id, run.reward_model_id, "b", config={}, manifest={}, total_steps=8)
    for result in (run, other):
        (home / "runs" / str(result.id) / "step-000005").mkdir(parents=True)
        (home / "runs" / str(result.id) / "step-000005" / "state.json").write_text("{}")
    set_run_status(db, run.id, RunStatus.DONE)
    run_control.delete(db, home, run.id)
    assert [result.id for result in runs(db)] == [other.id]
    assert [path.name for path in (home / "runs").iterdir()] == [str(other.id)]


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.PAUSED])
def test_an_active_run_is_not_deleted(db: Database, home: Path, run: Run, status: RunStatus) -> None:
    set_run_status(db, run.id, status)
    with pytest.raises(StoreError, match="stop it before"):
        run_control.delete(db, home, run.id)
    assert [result.id for result in runs(db)] == [run.id]


def test_a_run_whose_job_is_open_is_not_deleted(db: Database, home: Path, run: Run) -> None:
    submit(db, run)
    set_run_status(db, run.id, RunStatus.INTERRUPTED)
    with pytest.raises(StoreError, match="stop it before"):
        run_control.delete(db, home, run.id)
    assert [result.id for result in runs(db)] == [run.id]


def test_every_control_of_an_unknown_run_names_it(db: Database, home: Path, started: list[Path]) -> None:
    for call in (
        lambda: run_control.pause(db, 9),
        lambda: run_control.resume(db, home, 9),
        lambda: run_control.stop(db, 9),
        lambda: run_control.set_live_setting(db, 9, "beta", 0.1),
        lambda: run_control.switch_reward_model(db, 9, 1),
        lambda: run_control.rename(db, 9, "x"),
        lambda: run_control.delete(db, home, 9),
    ):
        with pytest.raises(StoreError, match="no run 9"):
            call()
    assert started == []


def test_a_run_whose_job_cannot_be_stored_is_removed(
    db: Database, home: Path, monkeypatch: pytest.MonkeyPatch, started: list[Path]
) -> None:
    project_id = project(db)
    reward_model(db, project_id)

    def refused(*_: object) -> None:
        raise StoreError("The database failed: the disk is full.")

    monkeypatch.setattr(queue, "submit_run_once", refused)
    with pytest.raises(StoreError, match="disk is full"):
        run_control.start_run(db, home, project_id, CONFIG)
    assert (runs(db), started) == ([], [])


def test_a_run_without_a_job_is_stopped_and_deleted(db: Database, home: Path, run: Run) -> None:
    """The page was killed between storing the run and storing its job."""
    run_control.stop(db, run.id)
    assert get_run(db, run.id).status is RunStatus.STOPPED
    assert pending_events(db, run.id) == []
    run_control.delete(db, home, run.id)
    assert runs(db) == []


@pytest.mark.parametrize("name", ["a\0b", "a\x1bb", "a\ud800", "\u202e", "\u200b\u2060"])
def test_an_unprintable_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="visible characters"):
        run_control.check_name(name)


def test_names_may_hold_emoji_and_writing_from_right_to_left() -> None:
    for name in ("\U0001f469\u200d\U0001f467 run", "\u200f\u05d0\u05d1"):
        assert run_control.check_name(name) == name
