"""The command line: its output, its exit status, one JSON object on standard output."""

import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from rlhf_lab.cli import demo, serve
from rlhf_lab.cli.console import progress_reporter
from rlhf_lab.cli.main import COMMAND_MODULES, main
from rlhf_lab.common import passwords
from rlhf_lab.common.enums import EventKind, Source
from rlhf_lab.common.records import LabelSnapshot, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.errors import LabelError
from rlhf_lab.jobs import engine_process, run_lock
from rlhf_lab.jobs.startup_project import VARIABLES
from rlhf_lab.models.sampling import sampler
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import create_project, projects
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import add_event, create_run


def call(capsys, *words):
    status = main([*words, "--json"])
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 1
    return status, json.loads(lines[0])


def home(tmp_path):
    return ["--home", str(tmp_path / "home")]


def test_label_with_a_judge_is_marked_as_simulated(tmp_path, capsys):
    status, reply = call(capsys, "label", "--judge", "cheerful", "--count", "5", *home(tmp_path))
    assert (status, reply["labels"], reply["simulated"]) == (0, 5, True)
    assert sum(reply["choices"].values()) == 5


@pytest.mark.parametrize(
    ("words", "kind", "remedy"),
    [
        (["label", "--judge", "nobody"], "ConfigError", "cheerful"),
        (["train-policy"], "LabelError", "train-reward"),
        (["train-policy", "--reward-model", "7"], "StoreError", "7"),
        (["runs", "--project", "9"], "StoreError", "--home"),
        (["demo", "--model", "./nowhere"], "ModelError", "embedded"),
        (["demo", "--steps", "0"], "ConfigError", "steps"),
        (["demo", "--labels", "-3"], "ConfigError", "at least 2 labels"),
        (["demo", "--prompts", "/nonexistent/prompts.txt"], "ConfigError", "one prompt per line"),
    ],
)
def test_errors_name_the_remedy(tmp_path, capsys, words, kind, remedy):
    if words[0] == "train-policy":
        call(capsys, "label", "--judge", "cheerful", "--count", "1", *home(tmp_path))
    status, reply = call(capsys, *words, *home(tmp_path))
    assert (status, reply["kind"]) == (1, kind)
    assert remedy in reply["error"]


@pytest.mark.parametrize("words", [["train-policy"], ["train-reward"], ["complete", "--prompt", "x"]])
def test_commands_do_not_create_a_lab_in_a_missing_home(tmp_path, capsys, words):
    status, reply = call(capsys, *words, *home(tmp_path))
    assert (status, reply["kind"]) == (1, "StoreError")
    assert "There is no lab in" in reply["error"]
    assert not (tmp_path / "home").exists()


def test_resume_takes_no_settings(tmp_path, capsys):
    Database.open(tmp_path / "home").close()
    status, reply = call(capsys, "train-policy", "--resume", "1", "--beta", "0.5", "--name", "x", *home(tmp_path))
    assert (status, reply["kind"]) == (1, "ConfigError")
    assert "--beta, --name: not with --resume" in reply["error"]


def test_help_lists_every_command_and_each_module_has_its_own(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    ([a-z-]+)(?: |$)", capsys.readouterr().out, re.MULTILINE)
    assert listed == list(COMMAND_MODULES)
    for command in listed:
        with pytest.raises(SystemExit) as exit_:
            main([command, "--help"])
        assert exit_.value.code == 0
        usage, description, *_ = capsys.readouterr().out.split("\n\n")
        assert f" {command} [-h]" in usage
        assert re.fullmatch(r"[A-Z][^.]+\..*", description, re.DOTALL), command
        assert description.rstrip().endswith("."), command


def test_only_commands_that_train_import_torch(tmp_path):
    commands = [["--version"], ["runs", "--home", str(tmp_path / "home")], ["export", "--help"]]
    script = (
        "import sys; from rlhf_lab.cli.main import COMMAND_MODULES, main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print({name.split('.')[0] for name in sys.modules} & {'torch', 'transformers', 'peft', 'gradio'})"
    )
    for words in commands:
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "set()"


def test_help_shows_the_defaults_in_use(capsys):
    with pytest.raises(SystemExit):
        main(["train-policy", "--help"])
    reply = " ".join(capsys.readouterr().out.split())
    config = PolicyConfig.for_algorithm("ppo")
    for words in (f"(default {config.minibatches})", f"(default {config.beta})", f"(default {config.cliprange})"):
        assert words in reply
    assert "(default 0.13)" not in reply
    assert "none runs all epochs; 0.0001 to 100 (default none)" in reply
    assert "(default None)" not in reply
    assert "optimizer updates per pass; 1 to 64 (default" in reply
    assert "sampling; 0 to 2147483647 (default 0)" in reply


def test_help_of_the_page_names_every_variable_that_replaces_an_option(capsys):
    with pytest.raises(SystemExit):
        serve.main(["--help"])
    footer = " ".join(capsys.readouterr().out.split()).partition("Environment variables replace missing options: ")[2]
    assert footer.rstrip(".").split(", ") == [
        "RLHF_LAB_HOME",
        "RLHF_LAB_DEMO_MODE",
        "RLHF_LAB_TRACK",
        *VARIABLES.values(),
    ]


@pytest.mark.parametrize("arguments", [["stop-engine", "--project", "1"], ["demo", "--pooling", "first"]])
def test_options_and_choices_without_a_meaning_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert arguments[1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pairs", "--seed", "5"], "--seed: only for a new project"),
        (["pairs", "--project", "1", "--model", "embedded"], "--project: not for a new project"),
        (["pairs", "--prompts", "FILE", "--prompt-set", "tales"], "--prompt-set: no effect with --prompts"),
        (["import", "FILE", "--model", "embedded"], "--model: only with --new-project"),
        (["import", "FILE", "--max-new-tokens", "9"], "--max-new-tokens: only with --new-project"),
        (["import", "FILE", "--new-project", "x", "--project", "1"], "--project: not with --new-project"),
        (["imports", "--yes"], "--yes: only with --undo ID"),
        (
            ["export", "recipe", "1", "--trainer", "dpo", "--source", "all", "--out", "OUT"],
            "--trainer, --source: only for recipes",
        ),
        (["export", "dataset", "--public", "--out", "OUT"], "--public: only for a repository"),
        (["demo", "--prompts", "FILE", "--prompt-set", "tales"], "--prompt-set: no effect"),
        (["demo", "--label-every", "3"], "--label-every: only for a policy"),
        (["demo", "--live", "--label-every", "0"], "--label-every 0: give 1 or more steps"),
    ],
)
def test_options_without_an_effect_are_refused(tmp_path, capsys, words, message):
    with Database.open(tmp_path / "home") as db:
        create_project(db, "p", "embedded", "", "tales", 0, [("Once", "train"), ("Far", "eval")])
    (tmp_path / "file.jsonl").write_text("{}")
    words = [{"FILE": str(tmp_path / "file.jsonl"), "OUT": str(tmp_path / "out")}.get(word, word) for word in words]
    status, reply = call(capsys, *words, *home(tmp_path))
    assert (status, reply["kind"]) == (1, "ConfigError")
    assert message in reply["error"]
    with Database.open(tmp_path / "home") as db:
        assert len(projects(db)) == 1


def test_a_demo_without_a_home_has_no_project_to_open(capsys):
    status, reply = call(capsys, "demo", "--open")
    assert (status, reply["kind"]) == (1, "ConfigError")
    assert "--open: only for a lab" in reply["error"]


def test_a_person_is_erased_or_made_an_expert(capsys):
    with pytest.raises(SystemExit):
        main(["people", "--erase", "Ann", "--expert", "Ann"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_prompt_set_makes_a_project_of_the_embedded_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rlhf_lab.cli.commands.wait_for_job", lambda *_: {"pair_ids": []})
    for words in ([], ["--prompt-set", "support", "--seed", "5"]):
        assert main(["pairs", *words, *home(tmp_path)]) == 0
    with Database.open(tmp_path / "home") as db:
        newest = max(projects(db), key=lambda project: project.id)
    assert (newest.id, newest.model, newest.prompt_set, newest.seed) == (2, "embedded", "support", 5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train-policy", "--kl-budget", "much"], "invalid float value: 'much'"),
        (["export", "run", "1", "--out", "x", "--step", "last"], '"last" is neither a step nor the word best'),
        (["pairs", "--count", "0"], "0 is not a whole number from 1 on"),
        (["label", "--judge", "cheerful", "--count", "-1"], "-1 is not a whole number from 1 on"),
        (["import", "x", "--max-mb", "²"], "² is not a whole number from 1 on"),
        (["import", "x", "--annotator", " "], "a name must not be empty"),
        (["pretrain", "--out", "x", "--threads", "-1"], "-1 is not a whole number from 0 on"),
        (["track", "1", "--to", "trackio", "--wait", "nan"], "nan is not a number of seconds from 0 on"),
    ],
)
def test_values_of_the_wrong_type_are_named(capsys, words, message):
    with pytest.raises(SystemExit):
        main(words)
    assert message in capsys.readouterr().err


def test_progress_without_a_terminal_is_a_line_per_phase_and_tenth(capsys):
    with progress_reporter("PPO") as show:
        for done in range(41):
            show(done / 40, 70.0 if done == 4 else None, f"step {done}", new_phase=done == 2)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[:3] == [
        "PPO: 0 %, step 0",
        "PPO: 5 %, step 2",
        "PPO: 10 %, step 4, 1 min 10 s left",
    ]
    assert len(printed.err.splitlines()) == 12


@pytest.fixture
def small_evaluation(monkeypatch):
    """A quarter of the prompts, which makes standard errors twice as large."""
    monkeypatch.setattr(demo, "SAMPLES_PER_PROMPT", [16] * 32 + [4] * 32)


def test_complete_answers_and_lengths_by_hand():
    """Stop tokens 8 and 9. Base: shares 1/2 and 1, lengths 2 and 1; two of three samples would be 2/3, and 5/3 tokens.

    Lengths 2, 2, 1 and scores 1, 3, -1: deviations 1/3, 1/3, -2/3 and 0, 2, -2, correlation 2 / sqrt(2/3 * 8).
    """
    base, policy = [[[5, 9], [9, 5]], [[8]]], [[5, 5, 8], [5]]
    assert demo.answer_measures(base, policy, [[1.0, 3.0], [-1.0]], (8, 9)) == {
        "complete_base": 0.75, "complete_policy": 0.5, "length_base": 1.5, "length_policy": 2.0,
        "length_correlation": pytest.approx(2 / (16 / 3) ** 0.5, abs=1e-12),
    }  # fmt: skip
    same_length = demo.answer_measures([[[9], [5]]], [[9]], [[1.0, 2.0]], (9,))
    assert same_length["length_correlation"] is None


@pytest.mark.usefixtures("small_evaluation")
def test_demo_runs_the_whole_loop(tmp_path, capsys, monkeypatch):
    def sample_pairs(*args, on_note):
        on_note("1 prompt left out")
        return real(*args, on_note=on_note)

    real = demo.sample_pairs
    monkeypatch.setattr(demo, "sample_pairs", sample_pairs)
    words = ["demo", "--labels", "60", "--judge", "cheerful", "--steps", "2", "--seed", "0", "--max-new-tokens", "32"]
    status = main([*words, *home(tmp_path), "--json"])
    printed = capsys.readouterr()
    reply = json.loads(printed.out)
    parts = [
        "sampling pairs",
        "the judge cheerful labels",
        "training the reward model",
        "training the policy",
        "evaluating",
    ]
    progress_lines = [line for line in printed.err.splitlines() if line.startswith("demo: ")]
    assert [next((i for i, line in enumerate(progress_lines) if part in line), None) for part in parts][:4] == [
        0,
        1,
        2,
        3,
    ]
    assert [
        line for line in progress_lines if "step 2 of 2" in line or parts[4] in line or "done" in line
    ] == progress_lines[-3:]
    assert status == 0
    assert (reply["labels"], reply["judge"], reply["seed"], reply["algorithm"]) == (60, "cheerful", 0, "ppo")
    assert reply["reward_accuracy_low"] <= reply["reward_accuracy"] <= reply["reward_accuracy_high"]
    assert reply["reward_accuracy"] > 0.7
    assert reply["best_of_16_gold"] > reply["best_of_4_gold"] > reply["gold_base"]
    assert reply["gold_gain"] == pytest.approx(reply["gold_policy"] - reply["gold_base"], abs=1e-12)
    # By prompt, over 64 prompts: one text minus its prompt's mean has an sd of nearly 1; the best of n varies less.
    assert 0.08 < reply["gold_gain_se"] < 0.18
    assert 0.02 < reply["best_of_4_se"] < reply["best_of_16_se"] < 0.1
    paired = reply["paired"]
    assert [(name, difference["prompts"]) for name, difference in paired.items()] == [
        ("policy_over_base", 64), ("best_of_4_over_base", 64), ("best_of_16_over_base", 32), ("policy_over_best_of_4", 64),
        ("policy_over_best_of_16", 32),
    ]  # fmt: skip
    gain, best = paired["policy_over_base"], paired["best_of_16_over_base"]
    assert gain["difference"] == pytest.approx(reply["gold_gain"], abs=1e-12)
    assert gain["high"] - gain["low"] == pytest.approx(2 * 2.0 * reply["gold_gain_se"], rel=0.01)
    assert best["low"] > 0.5
    assert paired["policy_over_best_of_16"]["high"] < 0  # two steps are worse than the best of 16
    assert (reply["length_base"], reply["length_policy"]) == (reply["response_len_base"], reply["response_len_policy"])
    assert reply["complete_policy"] == pytest.approx(round(64 * reply["complete_policy"]) / 64)
    assert set(reply["seconds"]) >= {"sample", "reward", "policy", "total"}
    assert reply["note"] == "1 prompt left out"
    result = demo.DemoResult(**reply)
    assert demo.format_result(result).splitlines()[0].endswith("seed 0; 1 prompt left out")
    assert demo.format_result(replace(result, note="")).splitlines()[0].endswith("seed 0")


@pytest.mark.usefixtures("small_evaluation")
def test_demo_finds_no_gain_at_another_temperature_when_nothing_was_learned(tmp_path, capsys, monkeypatch):
    """Base and policy are sampled at this temperature, so a policy that did not change is not better."""
    temperatures, true_sample = set(), sampler._sample

    def sample(backbone, prompts, uniform, temperature, on_progress):
        temperatures.add(temperature)
        return true_sample(backbone, prompts, uniform, temperature, on_progress)

    monkeypatch.setattr(sampler, "_sample", sample)
    words = ["--labels", "12", "--steps", "1", "--lr", "1e-8", "--temperature", "0.3", "--max-new-tokens", "12"]
    assert main(["demo", *words, *home(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    gain = result["paired"]["policy_over_base"]
    assert gain["low"] < 0 < gain["high"]
    assert temperatures == {0.3}


def test_demo_locks_its_run(tmp_path, monkeypatch):
    """No other process writes the run, and a lab on the same home detects when the process has died."""
    locks = []

    def execute(run):
        locks.append((run_lock.is_locked(tmp_path, run.run.id), run_lock.lock_owner(tmp_path, run.run.id)))
        raise LabelError("far enough")

    monkeypatch.setattr(PolicyRun, "execute", execute)
    words = ["demo", "--labels", "12", "--steps", "1", "--max-new-tokens", "8", "--home", str(tmp_path)]
    assert main(words) != 0
    assert locks == [(True, engine_process.this_process())]


def test_ptx_texts_of_a_file_are_passed_to_the_run(tmp_path, monkeypatch, capsys):
    passed = []

    def start(_db, _home, _project, config, _reward, _judge, _name, texts, *, reward_terms, track):
        passed.append((config.ptx_coef, texts))
        assert (reward_terms, track) == ([], None)
        raise LabelError("far enough")

    monkeypatch.setattr("rlhf_lab.cli.commands.run_control.start_run", start)
    call(capsys, "label", "--judge", "cheerful", "--count", "1", *home(tmp_path))
    texts_file = tmp_path / "own.txt"
    texts_file.write_text("a tale\nanother\n")
    command = ["train-policy", *home(tmp_path), "--ptx-coef", "0.2", "--ptx-texts"]
    assert main([*command, str(texts_file)]) == 1
    assert passed == [(0.2, (["a tale", "another"], "own.txt"))]
    assert main([*command, str(tmp_path / "none.txt")]) == 1
    assert "none.txt cannot be read" in capsys.readouterr().err
    assert len(passed) == 1


@pytest.mark.parametrize("low", [0.0, 0.31, 0.5, 0.51, None])
@pytest.mark.parametrize("chosen", [False, True])
def test_train_policy_warns_of_a_weak_reward_model_as_the_page_does(tmp_path, monkeypatch, capsys, low, chosen):
    """The warning is on standard error, before the run starts; standard output stays one JSON object."""
    monkeypatch.setattr("rlhf_lab.jobs.engine_process.ensure_engine", lambda db, home: None)
    monkeypatch.setattr(
        "rlhf_lab.cli.commands.wait_for_job",
        lambda *_: {"status": "done", "step": 0} | {"printed": capsys.readouterr().err},
    )
    with Database.open(tmp_path / "home") as db:
        project = create_project(db, "p", "embedded", "", "tales", 0, [("Once", "train"), ("Far", "eval")])
        report = {"accuracy": 0.5, "accuracy_low": low, "accuracy_high": 0.6}
        add = partial(add_reward_model, db, project.id, "x", config={}, snapshot=LabelSnapshot((), "", Source.HUMAN))
        if chosen:
            add(report=report), add(report=report | {"accuracy_low": 0.7})
        else:
            add(report=report | {"accuracy_low": 0.7}), add(report=report)
    words = ["--reward-model", "1"] if chosen else []
    status, reply = call(capsys, "train-policy", *words, *home(tmp_path))
    assert status == 0
    number, is_weak = 1 if chosen else 2, low is None or low <= 0.5  # without a bound the accuracy itself decides
    warning = "On held-out pairs it may rank no better than chance: label more pairs first.\n"
    assert reply["printed"] == (f"reward model {number}: {warning}" if is_weak else "")


@pytest.mark.parametrize("note", ["2 labels are left out: the model reads the same tokens for both texts", "", None])
def test_train_reward_prints_the_note_of_its_report(tmp_path, monkeypatch, capsys, note):
    with Database.open(tmp_path / "home") as db:
        project = create_project(db, "p", "embedded", "", "tales", 0, [("Once", "train"), ("Far", "eval")])
        report = {"accuracy": None, "labels": 12} | ({} if note is None else {"note": note})
        add_reward_model(db, project.id, "x", config={}, report=report, snapshot=LabelSnapshot((), "", Source.HUMAN))
    monkeypatch.setattr("rlhf_lab.cli.commands.wait_for_job", lambda *_: {"reward_model_id": 1})
    assert main(["train-reward", *home(tmp_path)]) == 0
    text = "reward model 1 from 12 human labels; cross-validated accuracy not measured"
    assert capsys.readouterr().out == (f"{text}; {note}\n" if note else f"{text}\n")


def test_train_reward_with_a_tracker_logs_the_new_reward_model(tmp_path, monkeypatch, capsys):
    """An unusable tracker is an error before the training."""
    entry, logged, trained = {"tracker": {"name": "trackio", "project": "p", "route": {}}}, [], []
    with Database.open(tmp_path / "home") as db:
        project = create_project(db, "p", "embedded", "", "tales", 0, [("Once", "train"), ("Far", "eval")])
        report = {"accuracy": None, "labels": 12}
        add_reward_model(db, project.id, "x", config={}, report=report, snapshot=LabelSnapshot((), "", Source.HUMAN))
    monkeypatch.setattr("rlhf_lab.cli.commands.wait_for_job", lambda *_: trained.append(1) or {"reward_model_id": 1})
    monkeypatch.setattr(
        "rlhf_lab.cli.commands.log_reward_model", lambda *words: logged.append(words) or "logged to trackio"
    )
    assert main(["train-reward", "--track", "mlflow", *home(tmp_path)]) == 1
    assert (trained, logged) == ([], [])
    monkeypatch.setattr("rlhf_lab.cli.commands.tracker_entry", lambda choice: {"trackio": entry, None: {}}[choice])
    capsys.readouterr()
    assert main(["train-reward", "--track", "trackio", *home(tmp_path)]) == 0
    assert capsys.readouterr().err == "reward model 1: logged to trackio\n"
    assert logged == [(tmp_path / "home", 1, entry)]


@pytest.mark.parametrize("words", [[], ["1", "--reward-model", "1"]])
def test_track_takes_a_run_or_a_reward_model(tmp_path, capsys, words):
    status, reply = call(capsys, "track", *words, "--to", "tensorboard", *home(tmp_path))
    assert (status, reply["kind"]) == (1, "ConfigError")
    assert "or --reward-model" in reply["error"]


def test_train_policy_prints_the_notes_of_its_training(tmp_path, monkeypatch, capsys):
    """On standard error; a note from before, such as that of an earlier part of the run, is not repeated."""
    with Database.open(tmp_path / "home") as db:
        project = create_project(db, "p", "embedded", "", "tales", 0, [("Once", "train"), ("Far", "eval")])
        run = create_run(db, project.id, None, "x", config=PolicyConfig().to_dict(), manifest={}, total_steps=1)
        add_event(db, run.id, EventKind.NOTE, {"words": "an old note"})

    def train(db, *_):
        add_event(db, run.id, EventKind.NOTE, {"words": "12 labels are left out"})
        return {"status": "done", "step": 1}

    monkeypatch.setattr("rlhf_lab.cli.commands._submit_or_resume", lambda *_: run.id)
    monkeypatch.setattr("rlhf_lab.jobs.run_control.last_job", lambda *_: run)
    monkeypatch.setattr("rlhf_lab.cli.commands.wait_for_job", train)
    assert main(["train-policy", *home(tmp_path)]) == 0
    assert capsys.readouterr().err == f"run {run.id}: 12 labels are left out\n"


def test_json_has_null_for_what_is_no_number(tmp_path, monkeypatch, capsys):
    with Database.open(tmp_path / "home") as db:
        project = create_project(db, "p", "embedded", "", "tales", 0, [("Once", "train"), ("Far", "eval")])
        run = create_run(db, project.id, None, "x", config=PolicyConfig().to_dict(), manifest={}, total_steps=1)
        record_step(db, run.id, StepResult(1, {"objective/kl": math.nan, "lr": math.inf, "eps": 0.5}))
    monkeypatch.setattr("rlhf_lab.cli.commands._submit_or_resume", lambda *_: run.id)
    monkeypatch.setattr("rlhf_lab.jobs.run_control.last_job", lambda *_: run)
    monkeypatch.setattr("rlhf_lab.cli.commands.wait_for_job", lambda *_: {"status": "done", "step": 1})
    status, reply = call(capsys, "train-policy", *home(tmp_path))
    assert (status, reply["metrics"]) == (0, {"objective/kl": None, "lr": None, "eps": 0.5})


def test_pretrain_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "README.md").write_text("mine")
    status, reply = call(capsys, "pretrain", "--out", str(tmp_path))
    assert (status, reply["kind"]) == (1, "ConfigError")
    assert "is not empty" in reply["error"]
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_closed_output_is_no_error(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("two owls\r\n"))
    monkeypatch.setattr("sys.stdout", None)  # as Python sets it if the descriptor is closed
    assert main(["password"]) == 0


def test_password_hashes_a_line_of_stdin(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("two owls\r\n"))
    assert main(["password"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert passwords.verify_password("two owls", line)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert main(["password"]) == 1
    assert "the password is empty" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "shown"), [("x\ud800", "x\\ud800"), ("naïve 😀", "na\\xefve \\U0001f600")])
def test_unencodable_characters_are_escaped(tmp_path, monkeypatch, name, shown):
    """A lone surrogate, which no encoding has, and a terminal in ASCII."""
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "q", "chosen": "a", "rejected": "b", name: "y"}))
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8" if "\ud800" in name else "ascii")
    command = [sys.executable, "-m", "rlhf_lab", "import", str(file), "--preview", *home(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"not used: {shown}" in done.stdout
