"""The Train screen without a browser: what its controls do and refuse, what starts a run, and that it needs no torch."""

import json
import subprocess
import sys

import pytest
from fake_runs import KL, a_run, reward_model

from rlhf_lab.common.enums import EventKind, JobKind, RunStatus, Source
from rlhf_lab.common.paths import ptx_texts_file
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import ALGORITHMS, PRESETS, PolicyConfig
from rlhf_lab.errors import ConfigError, LabelError, LabError, StoreError
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.judges.builtin import Judge
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import events, get_run, runs, set_run_status
from rlhf_lab.ui.components import charts
from rlhf_lab.ui.components.forms import Form, help_text
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.page import build_page
from rlhf_lab.ui.screens import train

# ---- controls


def said(run, do, **more):
    return {"at": 1, "do": do, "run": run.id, **more}


def test_controls_leave_events_for_the_engine(ctx):
    run, other = a_run(ctx), reward_model(ctx)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    train.handle_action(ctx, said(run, "set", name="beta", value=" 0,25 "))
    train.handle_action(ctx, said(run, "set", name="lr", value="3e-4"))
    train.handle_action(ctx, said(run, "switch", reward_model=other.id))
    train.handle_action(ctx, said(run, "pause"))
    train.handle_action(ctx, said(run, "stop"))
    assert [(event.kind.value, event.payload) for event in events(ctx.db, run.id)] == [
        ("set", {"name": "beta", "value": 0.25}), ("set", {"name": "lr", "value": 3e-4}),
        ("switch_reward", {"reward_model_id": other.id}), ("pause", {}), ("stop", {}),
    ]  # fmt: skip


def test_resume_of_a_failed_run_is_a_new_job(ctx):
    run = a_run(ctx)
    set_run_status(ctx.db, run.id, RunStatus.FAILED, "why")
    train.handle_action(ctx, said(run, "resume"))
    assert [job.payload for job in queue.jobs(ctx.db, kinds=[JobKind.TRAIN_POLICY])] == [{"run_id": run.id}]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"do": "set", "name": "beta", "value": "much"}, 'beta = "much" is not a number'),
        ({"do": "set", "name": "beta", "value": "nan"}, "not a finite number"),
        ({"do": "set", "name": "beta", "value": "99"}, "above its greatest value"),
        ({"do": "set", "name": "lr", "value": None}, "not a number"),
        ({"do": "set", "name": "seed", "value": "1"}, "cannot be changed while a run goes on"),
        ({"do": "switch", "reward_model": "x"}, "no usable reward model"),
        ({"do": "switch", "reward_model": 99}, "no reward model 99"),
        ({"do": "delete"}, 'cannot be told to "delete"'),
        ({"do": "pause", "run": None}, "no usable run"),
        ({"do": "pause", "run": 99}, "no run 99"),
        ({}, "cannot be told"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_with_words_and_nothing_is_recorded(ctx, more, words):
    run = a_run(ctx)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    with pytest.raises(LabError, match=words):
        train.handle_action(ctx, {"run": run.id} | more)
    assert events(ctx.db, run.id) == []


def test_a_run_that_is_done_cannot_be_paused(ctx):
    run = a_run(ctx)
    set_run_status(ctx.db, run.id, RunStatus.DONE)
    for do in ("pause", "stop", "resume"):
        with pytest.raises(StoreError, match="done"):
            train.handle_action(ctx, said(run, do))


# ---- the form that starts a run


def test_without_a_reward_model_it_says_how_many_labels_are_missing(ctx):
    options = train.start_options(ctx, train.make_reward_note(ctx.db))
    assert (options["models"], options["missing"], options["training"], options["runs"]) == ([], 10, None, 0)
    queue.submit(ctx.db, JobKind.TRAIN_REWARD, ctx.project.id, {"source": "human"})
    options = train.start_options(ctx, train.make_reward_note(ctx.db))
    assert (options["training"], options["learning"]) == (
        None,
        "A reward model from people's labels waits for the engine.",
    )
    queue.claim(ctx.db, [JobKind.TRAIN_REWARD], engine_process.record_heartbeat(ctx.db, "x"))
    options = train.start_options(ctx, train.make_reward_note(ctx.db))
    assert (options["training"], options["learning"]) == (0.0, "A reward model learns from people's labels.")


def test_reward_models_are_offered_newest_first_with_source_and_accuracy(ctx):
    first, second = reward_model(ctx), reward_model(ctx, Source.HUMAN, accuracy=None)
    models = train.start_options(ctx, train.make_reward_note(ctx.db))["models"]
    assert [(row[0], row[1]) for row in models] == [
        (second.id, f"{second.id}: 3 people's labels, accuracy not measured"),
        (first.id, f"{first.id}: 3 simulated labels, accuracy 81 %"),
    ]
    assert "people's labels" in models[0][2]
    assert "simulated labels" in models[1][2]


def test_a_judges_reward_model_is_not_chosen_where_people_taught_one(ctx, monkeypatch):
    note = train.make_reward_note(ctx.db)
    assert train.start_options(ctx, note)["chosen"] is None
    judged = reward_model(ctx)
    assert train.start_options(ctx, note)["chosen"] == judged.id
    own = reward_model(ctx, Source.HUMAN)
    monkeypatch.setattr(train, "MAX_MODELS", 2)
    later = [reward_model(ctx).id for _ in range(3)]
    options = train.start_options(ctx, note)
    assert options["chosen"] == own.id
    assert [row[0] for row in options["models"]] == [later[2], later[1], own.id]


def test_a_reward_model_that_may_be_guessing_says_so_before_a_run_starts(ctx):
    wide = reward_model(ctx, accuracy=0.17, accuracy_low=0.03, accuracy_high=0.56)
    good = reward_model(ctx, accuracy=0.8, accuracy_low=0.7, accuracy_high=0.9)
    (_, said, note), (_, doubtful, warned) = train.start_options(ctx, train.make_reward_note(ctx.db))["models"]
    assert doubtful == f"{wide.id}: 3 simulated labels, accuracy 3–56 %"
    assert "no better than guessing" in warned
    assert said == f"{good.id}: 3 simulated labels, accuracy 80 %"
    assert "guessing" not in note


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["cheerful"], "by the judge cheerful"),
        (["mine"], "by mine, which does not ship"),
        (["cheerful", "mine"], "by several judges"),
    ],
)
def test_the_note_names_the_judge_even_one_from_a_file(ctx, names, words):
    for i, name in enumerate(names):
        label_with_judge(ctx.db, ctx.project.id, Judge(name, "", "tales", lambda text: float(len(text))), 4, seed=i)
    pinned = snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED)
    row = add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={}, snapshot=pinned)
    assert words in train.make_reward_note(ctx.db)(row)


def test_another_model_than_the_embedded_one_begins_gently(ctx, monkeypatch):
    assert train.start_options(ctx, train.make_reward_note(ctx.db))["preset"] == "lab"
    monkeypatch.setattr(train, "EMBEDDED_MODEL", "another")
    assert train.start_options(ctx, train.make_reward_note(ctx.db))["preset"] == "gentle"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_words_and_is_a_config(name):
    assert train.PRESET_LABELS[name].startswith(name)
    assert train.preset_config(name) == PolicyConfig.for_algorithm("ppo", **PRESETS[name])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_preset_goes_over_what_is_recommended_for_the_algorithm(algorithm):
    assert train.preset_config("lab", algorithm) == PolicyConfig.for_algorithm(algorithm)
    assert train.preset_config("gentle", algorithm) == PolicyConfig.for_algorithm(algorithm, **PRESETS["gentle"])


def test_every_setting_of_a_form_stands_in_a_group():
    groups = {item.group for item in fields_of(PolicyConfig)}
    assert groups == {"run", "rollouts", "reward", "KL", "advantages", "policy loss", "value", "LoRA"}
    assert all(len(help_text(item)) < 160 for item in fields_of(PolicyConfig))


def test_another_algorithm_keeps_what_a_person_changed(form):
    ppo, rloo = PolicyConfig.for_algorithm("ppo"), PolicyConfig.for_algorithm("rloo")
    assert ppo.minibatches != rloo.minibatches
    names = [item.name for item in form.settings]
    shown = dict(zip(names, form.values(ppo), strict=True)) | {"algorithm": "rloo", "steps": "12", "beta": "abc"}
    moved = dict(zip(names, form.keep_user_edits(list(shown.values()), ppo, rloo), strict=True))
    assert (moved["algorithm"], moved["steps"], moved["beta"]) == ("rloo", "12", "abc")
    fresh = dict(zip(names, form.values(rloo), strict=True))
    assert {name for name in names if moved[name] != fresh[name]} == {"steps", "beta"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_setting_is_greyed_just_where_the_algorithm_takes_no_other_value_than_its_default(form, algorithm):
    config = PolicyConfig.for_algorithm(algorithm)
    updates = form.component_updates(["mine"] * len(form.settings), algorithm)
    for item, update in zip(form.settings, updates, strict=True):
        if item.only is None:
            assert (update["interactive"], update["value"]) == (True, "mine")
            continue
        other = next(value for value in others(item) if value != item.default)
        try:
            config.replace(**{item.name: other})
            taken = True
        except ConfigError as error:
            taken = "has no meaning for" not in str(error)
        assert update["interactive"] == taken, item.name
        assert form.parse(list(form.values(PolicyConfig())))[item.name] == item.default
        assert update["value"] == ("mine" if taken else form.values(PolicyConfig())[form.settings.index(item)])


def others(item):
    """Values that a setting may have besides its default."""
    if item.type is bool:
        return [not item.default]
    return list(item.choices or (item.type(item.low), item.type(item.high)))


def test_an_unknown_preset_is_refused():
    with pytest.raises(ConfigError, match="lab, gentle"):
        train.preset_config("wild")


def test_a_run_needs_a_reward_model_of_its_project(ctx):
    with pytest.raises(LabelError, match="Label pairs"):
        run_control.start_run(ctx.db, ctx.home, ctx.project.id, PolicyConfig())


@pytest.fixture
def form(monkeypatch):
    """The form without its components: they need gr.Blocks, which opens an event loop that nobody closes."""
    monkeypatch.setattr(Form, "__init__", lambda self: None)
    bare = Form()
    bare.settings = fields_of(PolicyConfig)
    return bare


def test_only_the_operator_starts_and_controls(ctx, form):
    run = a_run(ctx)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    locked = Context(ctx.home, ctx.db, operator_secret="sesame")
    values = form.values(train.preset_config("lab"))
    pause, start = {"do": "pause", "run": run.id}, {"reward_model": run.reward_model_id}
    for wrong in ("", None, "Sesame"):
        assert "Only the operator" in train.control_run(locked, wrong, pause)["error"]
        assert "Only the operator" in train.start_run(locked, form, wrong, start, values)["error"]
    assert (events(ctx.db, run.id), len(runs(ctx.db))) == ([], 1)
    assert "error" not in train.control_run(locked, "sesame", pause)
    assert "error" not in train.start_run(locked, form, "sesame", start, values)
    assert ([told.kind for told in events(ctx.db, run.id)], len(runs(ctx.db))) == ([EventKind.PAUSE], 2)


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_starts_with_what_stands_in_the_form(ctx, form, name):
    row = reward_model(ctx)
    said = {"reward_model": str(row.id), "name": "  first  run "}
    reply = train.start_run(ctx, form, None, said, form.values(train.preset_config(name)))
    run = get_run(ctx.db, reply["run"])
    assert PolicyConfig.from_dict(run.config) == PolicyConfig.for_algorithm("ppo", **PRESETS[name])
    assert (run.name, run.status, run.total_steps) == ("first run", RunStatus.QUEUED, train.preset_config(name).steps)
    assert queue.jobs(ctx.db)[0].payload == {"run_id": run.id}


def test_texts_for_ptx_come_from_a_file_and_its_column(ctx, form, tmp_path):
    row = reward_model(ctx)
    file = tmp_path / "mine.csv"
    file.write_text("said,by\nOnce upon a time.,ann\nThe end.,bob\n")
    said = {"reward_model": str(row.id)}
    reply = train.start_run(ctx, form, None, said, form.values(PolicyConfig(ptx_coef=0.1)), (str(file), "said"))
    run = get_run(ctx.db, reply["run"])
    assert run.manifest["ptx_texts"] == {"source": "mine.csv:said", "count": 2}
    assert json.loads(ptx_texts_file(ctx.home, run.id).read_text()) == ["Once upon a time.", "The end."]
    refused = train.start_run(ctx, form, None, said, form.values(PolicyConfig(ptx_coef=0.1)), (str(file), "sung"))
    assert 'no text in a column "sung"' in refused["error"]
    without = train.start_run(
        ctx, form, None, said, form.values(PolicyConfig()), (str(file), "said")
    )  # the weight is 0
    assert "ptx_texts" not in get_run(ctx.db, without["run"]).manifest


def test_a_bad_setting_is_refused_by_its_name_and_nothing_starts(ctx, form):
    row, values = reward_model(ctx), form.values(train.preset_config("lab"))
    steps = [item.name for item in form.settings].index("steps")
    for wrong, words in {"0": "steps = 0 is below", "many": 'steps = "many" is not a whole number'}.items():
        values[steps] = wrong
        assert words in train.start_run(ctx, form, None, {"reward_model": row.id}, values)["error"]
    values[steps] = "5"
    assert "no usable reward model" in train.start_run(ctx, form, None, {}, values)["error"]
    assert runs(ctx.db) == []


# ---- the page's parts


def test_every_drawn_metric_is_documented():
    abouts = charts.metric_descriptions()
    assert {curve.metric for curve in charts.CURVES} <= set(abouts)
    assert abouts[KL].startswith("KL of the sampling policy")
    assert "Healthy: 0 at step 1" in abouts[KL]


def test_documents_that_are_not_there_are_no_error(tmp_path):
    assert charts.metric_descriptions(tmp_path / "METRICS.md") == {}


def test_the_screen_is_built_without_torch(tmp_path):
    code = (
        "import sys, gradio as gr\n"
        "from pathlib import Path\n"
        "from rlhf_lab.ui.screens import train\n"
        "from rlhf_lab.ui.context import Context\n"
        "with gr.Blocks(analytics_enabled=False):\n"
        f"    train.build(Context.open(Path({str(tmp_path)!r})), gr.BrowserState(''))\n"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_control_that_follows_before_the_answer_is_not_dropped(ctx, in_loop):
    events = [
        fn
        for fn in in_loop(lambda: build_page(ctx)).fns.values()
        if any(name in ("control", "start") for _, name in fn.targets)
    ]
    assert len(events) >= 3
    assert {event.trigger_mode for event in events} == {"multiple"}
