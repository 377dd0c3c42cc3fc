"""The form of a new run without a browser: its options, presets and algorithms, and what a run starts with."""

import importlib.metadata
import json
import math
import re
from pathlib import Path

import pytest
from fake_runs import reward_model

from rlhf_lab.common.algorithms import ALGORITHMS
from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import JobKind, RunStatus, Source
from rlhf_lab.common.paths import ptx_texts_file
from rlhf_lab.common.records import Project
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import PRESETS, PolicyConfig
from rlhf_lab.errors import ConfigError, DataError, LabelError
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.model_speed import ModelSpeed
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.jobs.time_estimate import count_policy_step
from rlhf_lab.judges.builtin import Judge
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.reward_model_list import listed_model
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import get_run, runs
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.page import build_page
from rlhf_lab.ui.run_views import run_summary
from rlhf_lab.ui.shared.api import Payload, parse_payload
from rlhf_lab.ui.shared.forms import FILL_FIELDS, NEXT_NUMBER, SEND_VALUES, form_values, help_text, parse_settings
from rlhf_lab.ui.train.start_run import api as start_run


def options(ctx):
    return start_run.options(ctx, Payload())


def test_without_a_reward_model_it_says_how_many_labels_are_missing(ctx):
    shown = options(ctx)
    assert (shown["models"], shown["labels_missing"], shown["training_progress"], shown["run_count"]) == (
        [],
        10,
        None,
        0,
    )
    queue.submit(ctx.db, JobKind.TRAIN_REWARD, ctx.project.id, {"source": "human"})
    shown = options(ctx)
    assert (shown["training_progress"], shown["training_text"]) == (
        None,
        "A reward model from people's labels waits for the engine.",
    )
    queue.claim(ctx.db, [JobKind.TRAIN_REWARD], engine_process.record_heartbeat(ctx.db, "x"))
    shown = options(ctx)
    assert (shown["training_progress"], shown["training_text"]) == (
        0.0,
        "A reward model from people's labels is being trained.",
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_size_of_a_step_decides_its_duration(name):
    """Of a model that samples in no time: twice as many responses take twice as long; rejection also samples."""
    setting, label = start_run.size_of_step(ALGORITHMS[name])
    speed = ModelSpeed("cpu", forward=[0.001], sampling={"4": [0.0]}, prompt_tokens=9, response_tokens=[9])
    config = PolicyConfig.for_algorithm(name, sample_every=1000)
    doubled = config.replace(**{setting: 2 * getattr(config, setting)})
    ratio = count_policy_step(speed, doubled, scoring_pass=True) / count_policy_step(speed, config, scoring_pass=True)
    assert label.endswith(" per step")
    assert ratio > 1.5 if config.is_offline else ratio == pytest.approx(2.0)


def test_reward_models_are_offered_newest_first_with_source_and_accuracy(ctx):
    first, second = reward_model(ctx), reward_model(ctx, Source.HUMAN, accuracy=None)
    models = options(ctx)["models"]
    assert [(model["id"], model["label"]) for model in models] == [
        (second.id, f"{second.id}: accuracy not measured, 3 labels by people"),
        (first.id, f"{first.id}: accuracy 81 %, 3 simulated labels"),
    ]
    assert "people's labels" in models[0]["note"]
    assert "simulated labels" in models[1]["note"]


def test_the_newest_reward_model_of_peoples_labels_is_the_default(ctx, monkeypatch):
    assert options(ctx)["default_id"] is None
    simulated = reward_model(ctx)
    assert options(ctx)["default_id"] == simulated.id
    human = reward_model(ctx, Source.HUMAN)
    monkeypatch.setattr(start_run, "MAX_MODELS", 2)
    later = [reward_model(ctx).id for _ in range(3)]
    shown = options(ctx)
    assert shown["default_id"] == human.id
    assert [model["id"] for model in shown["models"]] == [later[2], later[1], human.id]


def test_the_best_supported_reward_model_is_preselected_with_the_reason(ctx):
    """Better than chance comes first, then people's labels, then the date."""

    def preselected():
        shown = options(ctx)
        assert run_control.default_reward_model(ctx.db, ctx.project.id).id == shown["default_id"]
        return shown["default_id"], shown["default_reason"]

    even, good = {"accuracy_low": 0.4, "accuracy_high": 0.9}, {"accuracy_low": 0.7, "accuracy_high": 0.9}
    assert run_control.default_reward_model(ctx.db, ctx.project.id) is None
    guessing_human = reward_model(ctx, Source.HUMAN, **even)
    assert preselected() == (guessing_human.id, "")
    reward_model(ctx, **even)
    assert preselected() == (
        guessing_human.id,
        f"Reward model {guessing_human.id} is preselected because it is the newest from people's labels. No other ranks better "
        "than chance either.",
    )
    judged = reward_model(ctx, **good)
    assert preselected() == (
        judged.id,
        f"Reward model {judged.id} is preselected because it is the newest that ranks better than chance. No reward "
        "model from people's labels does yet.",
    )
    human = reward_model(ctx, Source.HUMAN, **good)
    for later in ((Source.HUMAN, even), (Source.SIMULATED, good)):
        reward_model(ctx, later[0], **later[1])
        assert preselected() == (
            human.id,
            f"Reward model {human.id} is preselected because it is the newest from people's labels that ranks better than "
            "chance.",
        )


def test_a_reward_model_that_may_be_guessing_has_a_warning(ctx):
    wide = reward_model(ctx, accuracy=0.17, accuracy_low=0.03, accuracy_high=0.56)
    good = reward_model(ctx, accuracy=0.8, accuracy_low=0.7, accuracy_high=0.9)
    trusted, doubtful = options(ctx)["models"]
    assert doubtful["label"] == f"{wide.id}: accuracy 3–56 %, 3 simulated labels"
    assert "no better than chance" in doubtful["note"]
    assert trusted["label"] == f"{good.id}: accuracy 80 %, 3 simulated labels"
    assert "guessing" not in trusted["note"]


def test_an_accuracy_interval_that_begins_at_zero_has_the_warning_too(ctx):
    """Zero is a measured bound, not a missing one; without a bound the accuracy itself counts."""
    lowest = reward_model(ctx, accuracy=0.0, accuracy_low=0.0, accuracy_high=0.24)
    unmeasured = reward_model(ctx, accuracy=None, accuracy_low=0.0, accuracy_high=1.0)
    unknown = reward_model(ctx, accuracy=0.8, accuracy_low=None)
    notes = {model["id"]: model["note"] for model in options(ctx)["models"]}
    warned = {row.id: "no better than chance" in notes[row.id] for row in (lowest, unmeasured, unknown)}
    assert warned == {lowest.id: True, unmeasured.id: True, unknown.id: False}


@pytest.mark.parametrize(
    ("accuracy", "low", "warns", "label"),
    [
        (0.0, None, True, "accuracy 0 %"),
        (0.4, None, True, "accuracy 40 %"),
        (0.5, None, True, "accuracy 50 %"),
        (0.51, None, False, "accuracy 51 %"),
        (None, None, True, "accuracy not measured"),
        (0.4, math.nan, True, "accuracy 40 %"),
        (0.8, math.nan, False, "accuracy 80 %"),
        (math.nan, math.nan, True, "accuracy not measured"),
    ],
)
def test_without_a_bound_the_accuracy_itself_tells_whether_to_warn(ctx, accuracy, low, warns, label):
    row = reward_model(ctx, accuracy=accuracy, accuracy_low=low, accuracy_high=low)
    (model,) = options(ctx)["models"]
    assert ("no better than chance" in model["note"]) is warns
    assert model["label"] == f"{row.id}: {label}, 3 simulated labels"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["cheerful"], "by the judge cheerful"),
        (["mine"], "by mine, which is not part of the lab"),
        (["cheerful", "mine"], "by several judges"),
    ],
)
def test_the_note_names_the_judge_even_one_from_a_file(ctx, names, text):
    for i, name in enumerate(names):
        label_with_judge(
            ctx.db, ctx.project.id, Judge(name, "", "tales", lambda _, response: float(len(response))), 4, seed=i
        )
    pinned = snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED)
    row = add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={}, snapshot=pinned)
    assert text in start_run.reward_note(listed_model(ctx.db, ctx.project.id, row.id))


def test_the_form_opens_with_the_preset_for_any_model():
    assert next(iter(start_run.PRESET_LABELS)) == "lab"
    assert start_run.preset_config("lab").kl_budget == 4.0


def test_a_preset_comes_at_the_temperature_and_length_of_the_project(ctx, calls):
    project = new_project(ctx.db, temperature=0.7, max_new_tokens=96)
    values = calls(start_run, ctx).recommended({"preset": "gentle", "algorithm": "grpo"})
    assert (project.id, values["temperature"], values["max_new_tokens"]) == (ctx.project.id, "0.7", "96")
    assert (values["algorithm"], values["kl_budget"], values["group_size"]) == ("grpo", "2", "4")
    assert "lab, gentle" in calls(start_run, ctx).recommended({"preset": "wild", "algorithm": "ppo"})["error"]
    assert "no usable preset" in calls(start_run, ctx).recommended({"algorithm": "ppo"})["error"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_label_and_is_a_config(name):
    assert start_run.PRESET_LABELS[name].startswith(name)
    assert start_run.preset_config(name) == PolicyConfig.for_algorithm("ppo", **PRESETS[name])
    project = Project(1, "p", "embedded", "", "tales", 0, 0.0, temperature=0.7, max_new_tokens=96)
    assert start_run.preset_config(name, "ppo", project) == start_run.preset_config(name).replace(
        temperature=0.7, max_new_tokens=96
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_preset_overrides_the_recommended_settings_of_the_algorithm(algorithm):
    assert start_run.preset_config("lab", algorithm) == PolicyConfig.for_algorithm(algorithm)
    assert start_run.preset_config("gentle", algorithm) == PolicyConfig.for_algorithm(algorithm, **PRESETS["gentle"])


def test_every_setting_of_the_form_belongs_to_a_group():
    groups = {item.group for item in fields_of(PolicyConfig)}
    assert groups == {
        "run",
        "rollouts",
        "reward",
        "KL",
        "advantages",
        "policy loss",
        "value",
        "offline methods",
        "LoRA",
    }
    assert all(len(help_text(item)) < 160 for item in fields_of(PolicyConfig))


@pytest.mark.parametrize(
    ("model", "measured"), [(EMBEDDED_MODEL, "gold at KL 2 is "), ("org/model", "gold on new prompts is ")]
)
def test_the_algorithms_for_few_labels_are_in_the_order_of_the_documentation(model, measured):
    """The best first."""
    text = " ".join((Path(__file__).parents[2] / "docs" / "LEARNING.md").read_text(encoding="utf-8").split())
    gold = {name: number for number, name in re.findall(r"(\d\.\d\d) for `(\w+)`", text.partition(measured)[2])[:4]}
    assert sorted(gold) == ["dpo", "grpo", "ppo", "rejection"]
    note = start_run.few_labels_note(model)
    assert re.findall(r"\b(ppo|grpo|dpo|rejection)\b", note) == sorted(gold, key=lambda name: -float(gold[name]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_setting_is_disabled_where_the_algorithm_accepts_only_its_default(algorithm):
    """Disabled by `Setting.applies_to`; fieldProperties of texts.js."""
    config = PolicyConfig.for_algorithm(algorithm)
    for item in fields_of(PolicyConfig):
        if item.only is None:
            continue
        other = next(value for value in other_values(item) if value != item.default)
        try:
            config.replace(**{item.name: other})
            accepted = True
        except ConfigError as error:
            accepted = "has no meaning for" not in str(error)
        assert item.applies_to(algorithm) == accepted, item.name
        assert accepted or getattr(config, item.name) == item.default


def test_a_form_contains_every_setting():
    assert parse_settings(PolicyConfig, form_values(PolicyConfig())) == PolicyConfig().to_dict()


def other_values(item):
    """Values that a setting may have besides its default."""
    if item.type is bool:
        return [not item.default]
    return list(item.choices or (item.type(item.low), item.type(item.high)))


def test_a_run_needs_a_reward_model_of_its_project(ctx):
    with pytest.raises(LabelError, match="Label pairs"):
        run_control.start_run(ctx.db, ctx.home, ctx.project.id, PolicyConfig())


def start(ctx, config, reward_model=None, **fields):
    """The run that starts with this config."""
    payload = {"settings": form_values(config), "reward_model": reward_model.id if reward_model else 0} | fields
    return get_run(ctx.db, start_run.start(ctx, parse_payload(start_run.StartRun, payload))["run"])


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_starts_with_the_values_of_the_form(ctx, name):
    preset = start_run.preset_config(name)
    run = start(ctx, preset, reward_model(ctx), name="  first  run ")
    assert PolicyConfig.from_dict(run.config) == PolicyConfig.for_algorithm("ppo", **PRESETS[name])
    assert (run.name, run.status, run.total_steps) == ("first run", RunStatus.QUEUED, preset.steps)
    assert queue.jobs(ctx.db)[0].payload == {"run_id": run.id}


def test_texts_for_ptx_come_from_an_uploaded_file_and_its_column(ctx, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    model, config = reward_model(ctx), PolicyConfig(ptx_coef=0.1)
    file, other = tmp_path / "uploads" / "mine.csv", tmp_path / "mine.csv"
    for path in (file, other):
        path.write_text("said,by\nOnce upon a time.,ann\nThe end.,bob\n")
    run = start(ctx, config, model, ptx_file=str(file), ptx_column=" said ")
    assert run.manifest["ptx_texts"] == {"source": "mine.csv:said", "count": 2}
    assert json.loads(ptx_texts_file(ctx.home, run.id).read_text()) == ["Once upon a time.", "The end."]
    with pytest.raises(DataError, match='no text in a column "sung"'):
        start(ctx, config, model, ptx_file=str(file), ptx_column="sung")
    for elsewhere in (other, tmp_path / "uploads" / ".." / "mine.csv", tmp_path / "uploads" / "none.csv"):
        with pytest.raises(ConfigError, match="The uploaded file is missing"):
            start(ctx, config, model, ptx_file=str(elsewhere), ptx_column="said")
    without_ptx = start(ctx, PolicyConfig(), model, ptx_file=str(file), ptx_column="said")
    assert "ptx_texts" not in without_ptx.manifest


@pytest.mark.parametrize(
    ("lines", "with_model", "expected"),
    [
        ("", True, None),
        ("0.5*length:5-20\n\n  json\n", True,
         [("reward_model", 1.0, {}), ("length", 0.5, {"min_words": 5, "max_words": 20}), ("json", 1.0, {})]),
        ("json\n2 * reward_model", True, [("json", 1.0, {}), ("reward_model", 2.0, {})]),
        ("-1 * mine.py:loud", False, [("own", -1.0, {"file": "mine.py", "function": "loud"})]),
    ],
)  # fmt: skip
def test_a_run_has_the_reward_terms_of_the_form(ctx, lines, with_model, expected):
    row = reward_model(ctx)
    (ctx.home / "rewards").mkdir()
    (ctx.home / "rewards" / "mine.py").write_text("def loud(response): return 1.0\n")
    run = start(ctx, PolicyConfig(), row if with_model else None, reward_terms=lines)
    terms = run.manifest.get("reward_terms")
    assert (terms and [(term["name"], term["weight"], term["options"]) for term in terms]) == expected
    assert run.reward_model_id == (row.id if with_model else None)


def test_a_run_is_logged_where_the_form_says_or_else_the_lab(ctx, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    monkeypatch.setenv("RLHF_LAB_TRACK", "wandb:class-7")
    row = reward_model(ctx)
    found = [start(ctx, PolicyConfig(), row, track=track).manifest.get("tracker") for track in ("", "trackio", "off")]
    assert [tracker and (tracker["name"], tracker["project"]) for tracker in found] == [
        ("wandb", "class-7"), ("trackio", "rlhf-lab"), None,
    ]  # fmt: skip
    field = start_run.tracker_input()
    assert field.value == "wandb:class-7"
    assert [value for _, value in field.choices] == ["off", "trackio", "wandb", "tensorboard", "wandb:class-7"]


def test_a_run_whose_tracker_is_not_installed_is_not_created(ctx, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ConfigError, match=r"can be logged to trackio, which is not installed.*pip install trackio"):
        start(ctx, PolicyConfig(), reward_model(ctx), track="trackio")
    assert runs(ctx.db) == []


@pytest.mark.parametrize("lines", ["", "json"])
def test_dpo_starts_on_labels_alone(ctx, lines):
    """The form shows which labels are used, and that nothing can be started without labels."""
    assert options(ctx)["labels_text"] == ""
    label_with_judge(ctx.db, ctx.project.id, Judge("cheerful", "", "tales", lambda _, text: float(len(text))), 3)
    assert options(ctx)["labels_text"] == "3 labels of simulated judges"
    run = start(ctx, start_run.preset_config("lab", "dpo"), reward_terms=lines)
    assert run.reward_model_id is None
    assert len(run.manifest["labels"]["vote_ids"]) == 3
    assert [term["name"] for term in run.manifest.get("reward_terms", [])] == lines.split()
    assert run_summary.label_source_text(ctx.db, run) == "DPO learns from simulated labels by the judge cheerful"


@pytest.mark.parametrize(
    ("lines", "with_model", "message"),
    [
        ("", False, "no reward model is chosen"),
        ("reward_model", False, "no reward model is chosen"),
        ("lenght:1-2", True, 'no reward term "lenght"'),
        ("json\njson", True, '"json" occurs twice'),
        ("../mine.py:loud", True, r'no file "\.\./mine.py" in the folder of own reward functions.*It has other.py'),
    ],
)
def test_reward_terms_that_cannot_be_start_nothing(ctx, lines, with_model, message):
    row = reward_model(ctx)
    (ctx.home / "rewards").mkdir()
    for path in (ctx.home / "mine.py", ctx.home / "rewards" / "other.py"):
        path.write_text("def loud(response): return 1.0\n")
    with pytest.raises(ConfigError, match=message):
        start(ctx, PolicyConfig(), row if with_model else None, reward_terms=lines)
    assert runs(ctx.db) == []


def test_a_bad_setting_is_refused_by_its_name_and_nothing_starts(ctx, calls):
    screen, row = calls(start_run, ctx), reward_model(ctx)
    values = form_values(start_run.preset_config("lab"))
    for wrong, message in {"0": "steps = 0 is below", "many": 'steps = "many" is not a whole number'}.items():
        reply = screen.start({"settings": values | {"steps": wrong}, "reward_model": row.id})
        assert message in reply["error"]
    assert "no usable reward model" in screen.start({"settings": values})["error"]
    assert "no usable settings" in screen.start({"settings": {"steps": [1]}, "reward_model": row.id})["error"]
    assert runs(ctx.db) == []


def test_only_the_operator_starts_runs(ctx, calls, send_secret):
    screen = calls(start_run, Context(ctx.home, ctx.db, operator_secret="sesame"))
    payload = {"settings": form_values(PolicyConfig()), "reward_model": reward_model(ctx).id, "reward_terms": "json"}
    for wrong in ("", "Sesame"):
        send_secret(wrong)
        assert "Only the operator" in screen.start(payload)["error"]
    assert runs(ctx.db) == []
    send_secret("sesame")
    run = get_run(ctx.db, screen.start(payload)["run"])
    assert [term["name"] for term in run.manifest["reward_terms"]] == ["reward_model", "json"]


def test_every_reply_of_a_form_has_a_number_of_its_own(ctx, in_loop):
    """Gradio does not tell a widget of a value that equals the one before: a second request for the values within a millisecond
    was never answered."""
    events = in_loop(lambda: build_page(ctx)).get_config_file()["dependencies"]
    scripts = [event["js"] for event in events if {name for _, name in event["targets"]} & {SEND_VALUES, FILL_FIELDS}]
    assert len(scripts) == 3  # of a run, which is also filled in, and of a reward model
    assert all(NEXT_NUMBER in script for script in scripts)
