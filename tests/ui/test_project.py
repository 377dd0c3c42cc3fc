"""Screen "Project" without a browser: list, model checks, creation with and without a download, operator, home folder."""

import shutil
import threading
from dataclasses import asdict, replace

import pytest
from support.fake_hub import FakeHub, model

from rlhf_lab.common.enums import JobKind, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Role
from rlhf_lab.errors import ConfigError, EngineError, ModelError, StoreError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.answer_length import length_rows
from rlhf_lab.jobs.memory_estimate import DeviceMemory
from rlhf_lab.jobs.project_setup import copy_project, new_project
from rlhf_lab.jobs.startup_project import StartupPhase, StartupState
from rlhf_lab.store import reward_models, runs
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project, projects, prompts
from rlhf_lab.store.runs import create_run
from rlhf_lab.ui.auth.visitors import Access, Visitor
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.header import api as header
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.limits import ENTER
from rlhf_lab.ui.project import api as screen
from rlhf_lab.ui.project.api import SUGGESTED_MODELS, TAIL_BYTES, TAIL_LINES, model_label, tail
from rlhf_lab.ui.shared.api import FieldError, Payload, parse_payload

NAME = "someone/small"
WAIT = 30.0


@pytest.fixture
def ctx(tmp_path, project_home):
    with Database.open(shutil.copytree(project_home, tmp_path / "home")) as db:
        yield Context(tmp_path / "home", db)


def act(ctx, name, /, **payload):
    """What an action replies. Raises LabError."""
    endpoint = screen.api.endpoints[name]
    return endpoint.handler(ctx, parse_payload(endpoint.payload, payload))


def state(ctx):
    return screen.state(ctx, Payload())


@pytest.fixture
def hub(tmp_path, monkeypatch):
    found = FakeHub(tmp_path / "cache").use(monkeypatch)
    found.models[NAME] = model(tmp_path / "remote")
    return found


def new(**changes):
    return {"model": "embedded", "prompt_set": "tales", "seed": "0", "name": ""} | changes


def test_the_list_counts_what_a_project_has(ctx):
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 5)
    shown = state(ctx)
    (line,) = shown["projects"]
    assert (line["id"], shown["current"]) == (1, 1)
    assert (line["human_labels"], line["simulated_labels"], line["model_count"], line["run_count"]) == (0, 5, 0, 0)
    assert (line["train_count"], line["eval_count"], line["prompt_set"], line["model"]) == (
        768,
        256,
        "tales",
        "embedded model",
    )
    assert line["pair_count"] > 0
    assert shown["download"] is None
    assert shown["engine"] == {"state": "absent", "stoppable": False}


def test_opening_a_project_opens_it_for_all(ctx):
    second = new_project(ctx.db, prompt_set="reviews", name="two")
    assert [line["id"] for line in state(ctx)["projects"]] == [second.id, 1]
    assert '"Tales" is open' in act(ctx, "open_existing", project=1)["message"]
    assert (state(ctx)["current"], ctx.project.id) == (1, 1)
    with pytest.raises(StoreError, match="no project 9"):
        act(ctx, "open_existing", project=9)


def test_a_project_is_deleted_with_its_files_but_not_the_one_that_is_open(ctx):
    home, snapshot = ctx.home, LabelSnapshot((), "", Source.HUMAN)
    model = reward_models.add_reward_model(ctx.db, 1, "reward-models/one", config={}, report={}, snapshot=snapshot)
    run = runs.create_run(ctx.db, 1, model.id, "r", config={}, manifest={}, total_steps=1)
    reward_models.add_reward_model(
        ctx.db, 1, "", config={}, report={}, snapshot=snapshot
    )  # no path must name the whole home
    runs.set_run_status(ctx.db, run.id, RunStatus.STOPPED)
    ctx.scheduler.request_judge_labels(1, "cheerful", 1000)
    deleted = [home / "reward-models" / "one", home / "runs" / str(run.id)]
    others = [home / "reward-models" / "two", home / "runs" / str(run.id + 1)]
    for folder in deleted + others:
        folder.mkdir(parents=True)
        (folder / "weights").write_text("w")
    with pytest.raises(StoreError, match="Open another one"):
        act(ctx, "delete", project=1)
    second = new_project(ctx.db, prompt_set="reviews", name="two")
    assert act(ctx, "delete", project=1)["message"] == 'The project "Tales" is deleted.'
    assert [line["id"] for line in state(ctx)["projects"]] == [second.id]
    assert [folder.exists() for folder in deleted + others] == [False, False, True, True]
    assert not any(project == 1 for project, _ in ctx.scheduler._pending_judge_labels)
    with pytest.raises(StoreError, match="no project 1"):
        act(ctx, "delete", project=1)


def test_a_project_gets_another_name(ctx):
    assert act(ctx, "rename", project=1, name=" <b>Fox</b>\n tales ")["message"].endswith('"<b>Fox</b> tales" now.')
    assert (ctx.project.name, state(ctx)["projects"][0]["name"]) == ("<b>Fox</b> tales", "<b>Fox</b> tales")
    for name in ("  ", "x" * 81):
        with pytest.raises(ConfigError, match="1 to 80 characters"):
            act(ctx, "rename", project=1, name=name)
    with pytest.raises(ConfigError, match="1 to 80 characters"):  # the same rule for a new project
        act(ctx, "create", **new(name="x" * 81))
    with pytest.raises(ConfigError, match="visible characters"):
        act(ctx, "create", **new(name="\u202e"))
    with pytest.raises(StoreError, match="no project 9"):
        act(ctx, "rename", project=9, name="Nine")
    assert len(projects(ctx.db)) == 1
    assert ctx.project.name == "<b>Fox</b> tales"


def test_a_project_of_several_people_has_a_seed_that_nobody_knows(ctx):
    shared = ctx.as_multi_user(open_to_all=True)
    seeds = []
    for seed in ("0", "0", "7"):
        act(shared, "create", **new(seed=seed))
        seeds.append(ctx.project.seed)
    assert min(seeds[:2]) > 2**31
    assert seeds[0] != seeds[1]
    assert seeds[2] == 7


def test_a_project_is_created_and_open(ctx):
    reply = act(ctx, "create", **new(prompt_set="support", seed="7", name="My <b>own</b>"))
    assert (reply["warning"], reply["check"]) == ("", None)
    assert reply["message"] == (
        'Project "My <b>own</b>" was created and opened. The engine is writing its first pairs.'
    )
    assert (ctx.project.name, ctx.project.prompt_set, ctx.project.seed) == ("My <b>own</b>", "support", 7)


def chat_model(folder):
    (model(folder) / "chat_template.jinja").write_text("{{ messages }}")
    return str(folder)


def test_empty_fields_mean_what_suits_the_model(ctx, tmp_path):
    path = chat_model(tmp_path / "chat")
    check = act(ctx, "check_model", model=path)
    assert (check["prompt_set"], check["temperature"]) == ("everyday", 0.7)
    act(ctx, "create", **new(model=path, prompt_set="", temperature=""))
    assert (ctx.project.prompt_set, ctx.project.temperature) == ("everyday", 0.7)
    act(ctx, "create", **new(model=path, prompt_set="tales", temperature="0,9"))
    assert (ctx.project.prompt_set, ctx.project.temperature) == ("tales", 0.9)
    act(ctx, "create", **new(prompt_set=""))
    assert (ctx.project.prompt_set, ctx.project.temperature) == ("tales", 1.0)


def test_a_project_with_a_system_prompt_and_template_arguments(ctx, tmp_path):
    path = chat_model(tmp_path / "chat")
    (tmp_path / "chat" / "chat_template.jinja").write_text("{{ enable_thinking }}")
    assert act(ctx, "check_model", model=path)["template_arguments"] == '{"enable_thinking": false}'
    act(ctx, "create", **new(model=path, system_prompt="Be kind.\n"))
    assert (ctx.project.system_prompt, ctx.project.template_arguments) == ("Be kind.", {"enable_thinking": False})
    shown = state(ctx)["projects"][0]
    assert (shown["system_prompt"], shown["template_arguments"]) == ("Be kind.", '{"enable_thinking": false}')
    act(ctx, "create", **new(model=path, template_arguments='{"enable_thinking": true}'))
    assert (ctx.project.system_prompt, ctx.project.template_arguments) == ("", {"enable_thinking": True})
    for wrong, message in (("thinking", "not a JSON object"), ('{"speed": 1}', "does not mention speed")):
        with pytest.raises(ConfigError, match=message):
            act(ctx, "create", **new(model=path, template_arguments=wrong))
    assert len(projects(ctx.db)) == 3


def test_a_temperature_can_be_changed_and_existing_pairs_are_mentioned(ctx):
    pairs = state(ctx)["projects"][0]["pair_count"]
    reply = act(ctx, "set_temperature", project=1, temperature="0.8")
    assert f"{pairs} pairs written at 1 are kept" in reply["message"]
    assert ctx.project.temperature == state(ctx)["projects"][0]["temperature"] == 0.8
    for temperature in ("", "9", "warm"):
        with pytest.raises(FieldError, match=r"from 0\.05 to 5"):
            act(ctx, "set_temperature", project=1, temperature=temperature)
    with pytest.raises(StoreError, match="no project 9"):
        act(ctx, "set_temperature", project=9, temperature="1")
    assert ctx.project.temperature == 0.8


def test_the_length_of_a_new_and_of_an_existing_project(ctx):
    pairs = state(ctx)["projects"][0]["pair_count"]
    reply = act(ctx, "set_length", project=1, max_new_tokens="96")
    assert f"at most 96 tokens. {pairs} pairs written with at most 64 are kept" in reply["message"]
    assert ctx.project.max_new_tokens == state(ctx)["projects"][0]["max_new_tokens"] == 96
    for length in ("", "0", "4097", "long", "9.5"):
        with pytest.raises(FieldError, match=r"from 1 to 4,?096"):
            act(ctx, "set_length", project=1, max_new_tokens=length)
    act(ctx, "create", **new(max_new_tokens="128"))
    assert ctx.project.max_new_tokens == 128
    act(ctx, "create", **new(max_new_tokens=""))
    assert ctx.project.max_new_tokens == 64
    needs = [act(ctx, "check_model", model="embedded", max_new_tokens=length)["check"] for length in ("", "64", "512")]
    assert [need["tokens"] for need in needs] == [128, 128, 576]
    assert needs[0]["required_bytes"] == needs[1]["required_bytes"] < needs[2]["required_bytes"]


def test_a_measured_length_is_shown_and_accepted(ctx):
    assert state(ctx)["length"] is None
    assert label.state(ctx, "ann")["length_note"] == ""
    job = queue.submit(ctx.db, JobKind.MEASURE_LENGTH, ctx.project.id, {})
    queue.claim(ctx.db, [JobKind.MEASURE_LENGTH], engine_process.record_heartbeat(ctx.db, "x"))
    rows = [asdict(row) for row in length_rows([10, 80, 90, 90], {64: 1.0, 96: 2.0}, adds_instruction=False)]
    queue.finish(ctx.db, job.id, {"rows": rows, "system_prompt": "", "seconds": 3.0, "note": ""})
    shown = state(ctx)["length"]
    assert (shown["proposal"].max_new_tokens, shown["is_new"]) == (96, True)
    assert "with at most 96 tokens, 100 % are complete" in label.state(ctx, "ann")["length_note"]
    assert "New texts have at most 96 tokens. " in act(ctx, "accept_length")["message"]
    assert ctx.project.max_new_tokens == 96
    assert state(ctx)["length"]["is_new"] is False
    assert label.state(ctx, "ann")["length_note"] == ""


def test_a_model_that_does_not_fit_needs_a_confirmation(ctx, tmp_path, monkeypatch):
    payload = new(model=str(model(tmp_path / "tiny-llama")))
    monkeypatch.setattr(screen, "detect_device", lambda: DeviceMemory("cpu", "CPU", 1_000_000))
    reply = act(ctx, "create", **payload)
    assert "too large for this machine" in reply["warning"]
    assert reply["check"]["verdict"] == "does not fit"
    assert len(projects(ctx.db)) == 1
    assert "was created and opened" in act(ctx, "create", **payload, confirmed=True)["message"]
    assert len(projects(ctx.db)) == 2


def test_custom_prompts_are_previewed_and_used(ctx):
    prompts_file = {"text": "\n".join(f'{{"prompt": "p {i}"}}' for i in range(9)), "file": "a/mine.jsonl"}
    shown = act(ctx, "preview_prompts", **prompts_file)
    assert shown == {
        "count": 9,
        "eval_count": 2,
        "first_prompts": [[{"role": "user", "content": f"p {i}"}] for i in range(5)],
    }
    act(ctx, "create", **new(prompt_set="own", **prompts_file))
    assert ctx.project.prompt_set == "mine.jsonl"
    assert [prompt.text for prompt in prompts(ctx.db, ctx.project.id, "eval")] == ["p 7", "p 8"]
    with pytest.raises(ConfigError, match="line 2"):
        act(ctx, "preview_prompts", text='"a"\n{', file="x.jsonl")


@pytest.mark.parametrize(
    ("payload", "error", "words"),
    [
        (new(prompt_set="poems"), ConfigError, "poems"),
        (new(prompt_set="own"), ConfigError, "0 different prompts"),
        (new(prompt_set="own", text="a\nb\nc"), ConfigError, "3 different prompts"),
        (new(seed="many"), FieldError, "whole number from 0"),
        (new(seed="1e30"), FieldError, "whole number from 0"),
        (new(seed="-1"), FieldError, "0 to"),
        (new(seed=2**31), FieldError, "0 to"),
        (new(model=""), ModelError, "neither"),
        (new(model="/no/such"), ModelError, "neither"),
        (new(system_prompt="x" * 10_001), FieldError, "System prompt: a text has more than 10,000 characters"),
        ({}, ConfigError, "no usable model"),
    ],
)
def test_a_refused_action_creates_nothing(ctx, payload, error, words):
    with pytest.raises(error, match=words):
        act(ctx, "create", **payload)
    assert len(projects(ctx.db)) == 1


def test_a_check_says_what_the_model_is_and_whether_it_fits(ctx, tmp_path):
    found = act(ctx, "check_model", model=str(model(tmp_path / "tiny-llama")))["check"]
    assert (found["model"], found["architecture"], found["parameters"]) == ("tiny-llama", "LlamaForCausalLM", 1001)
    assert found["download_bytes"] == 0
    assert found["required_bytes"] == sum(size for _, size, _ in found["components"])
    assert found["verdict"] in ("fits", "tight", "does not fit")


def test_a_check_without_the_hub_says_what_to_do(ctx, hub):
    hub.error = OSError("no route")
    with pytest.raises(ModelError, match=r"cannot be reached.*embedded model"):
        act(ctx, "check_model", model=NAME)


def test_the_hub_is_asked_once_for_a_check_and_a_creation(ctx, hub):
    act(ctx, "check_model", model=NAME)
    act(ctx, "create", **new(model=NAME))
    ctx.downloads.wait(WAIT)
    assert hub.asked == [NAME]


def test_a_model_from_the_hub_is_downloaded_before_its_project_is_made(ctx, hub):
    go_on, arrived = threading.Event(), threading.Event()
    hub.between = lambda file: (arrived.set(), go_on.wait(WAIT))
    assert act(ctx, "check_model", model=NAME)["check"]["download_bytes"] > 0
    assert "Downloading" in act(ctx, "create", **new(model=NAME, prompt_set="reviews"))["message"]
    assert arrived.wait(WAIT)
    shown = state(ctx)["download"]
    assert (shown["model"], shown["status"]) == (NAME, "running")
    assert len(projects(ctx.db)) == 1
    with pytest.raises(EngineError, match="being downloaded"):
        act(ctx, "create", **new(model=NAME))
    go_on.set()
    ctx.downloads.wait(WAIT)
    assert (ctx.project.model, ctx.project.name) == (NAME, "small: reviews")
    assert len(ctx.project.model_hash) == 64
    assert state(ctx)["download"]["status"] == "done"


def test_a_cancelled_download_makes_no_project(ctx, hub):
    go_on, arrived = threading.Event(), threading.Event()
    hub.between = lambda file: (arrived.set(), go_on.wait(WAIT))
    act(ctx, "create", **new(model=NAME))
    assert arrived.wait(WAIT)
    assert "cancelled" in act(ctx, "cancel_download")["message"]
    go_on.set()
    ctx.downloads.wait(WAIT)
    assert len(projects(ctx.db)) == 1
    assert state(ctx)["download"]["status"] == "cancelled"


class FailingStartup:
    """Stands for the startup with the model that the variables of a Space name."""

    def __init__(self):
        self.shown = StartupState(StartupPhase.FAILED, NAME, "It cannot be reached.")
        self.starts = 0

    def state(self):
        return self.shown

    def start(self):
        self.starts += 1
        return self.shown is not None

    def dismiss(self):
        self.shown = None


def test_the_model_of_a_space_can_be_tried_again_until_a_project_is_chosen(ctx, hub):
    startup = FailingStartup()
    ctx = replace(ctx, startup=startup)
    assert state(ctx)["download"] == {
        "model": NAME, "status": "failed", "message": "It cannot be reached.", "can_retry": True, "downloaded_bytes": 0,
        "total_bytes": 0, "eta_s": None,
    }  # fmt: skip
    assert header.state(ctx)["startup"] == {
        "phase": "failed", "model": "small", "message": "It cannot be reached.", "downloaded_bytes": None,
        "total_bytes": None, "eta_s": None,
    }  # fmt: skip
    assert act(ctx, "retry_download")["message"] == "The lab tries again."
    assert startup.starts == 1
    act(ctx, "open_existing", project=1)
    assert (state(ctx)["download"], header.state(ctx)["startup"]) == (None, None)
    with pytest.raises(ConfigError, match="nothing to retry"):
        act(ctx, "retry_download")
    startup.shown = StartupState(StartupPhase.READY, "someone/other", "It is open.")
    assert header.state(ctx)["startup"] is None
    assert state(ctx)["download"]["can_retry"] is False
    act(ctx, "create", **new(model=NAME))  # a later download is shown instead
    ctx.downloads.wait(WAIT)
    assert state(ctx)["download"]["model"] == NAME


def test_there_is_nothing_to_try_again_elsewhere(ctx):
    with pytest.raises(ConfigError, match="nothing to retry"):
        act(ctx, "retry_download")


def test_the_label_of_a_model_omits_its_folder(tmp_path):
    assert model_label("embedded") == "embedded model"
    assert model_label(str(tmp_path / "llama")) == "llama"
    assert model_label(NAME) == NAME


def test_a_model_offered_by_name_is_marked_untested_until_a_figure_stands_in_the_decisions():
    from rlhf_lab.ui.shared.glossary import METRICS_DOC

    decisions = METRICS_DOC.with_name("DECISIONS.md").read_text(encoding="utf-8")
    assert not [name for name, _ in SUGGESTED_MODELS if name in decisions]


def test_stopping_an_engine_that_is_not_there(ctx):
    assert act(ctx, "stop_engine") == {"message": "No engine was running."}


def test_only_the_operator_creates_a_project(ctx, calls, send_secret):
    page = calls(screen, replace(ctx, operator_secret="sesame"))
    for wrong in ("", "Sesame"):
        send_secret(wrong)
        assert "Only the operator" in page.create(new())["error"]
    assert len(projects(ctx.db)) == 1
    send_secret("sesame")
    assert "was created" in page.create(new())["message"]
    assert len(projects(ctx.db)) == 2


def test_only_the_operator_acts_and_everybody_may_enter_a_secret():
    actions = {name: endpoint.role for name, endpoint in screen.api.endpoints.items() if not endpoint.is_read}
    assert actions.pop("enter_secret") is Role.VIEWER
    assert set(actions.values()) == {Role.OPERATOR}
    assert screen.api.endpoints["enter_secret"].limit == ENTER


@pytest.mark.parametrize("role", [Role.LABELLER, Role.VIEWER])
def test_the_browser_keeps_a_right_secret_and_a_viewer_is_sent_to_the_operators_link(
    ctx, calls, monkeypatch, send_secret, role
):
    """A secret does not give a viewer rights; the cookie of the link does."""
    monkeypatch.setattr(Access, "visitor", lambda *_: Visitor(role))
    page = calls(screen, replace(ctx, operator_secret="sesame").as_multi_user(open_to_all=False))
    for stored in ("", "sesame", "of another lab"):  # a stored secret does not make another one right
        send_secret(stored)
        for wrong in ("", "Sesame"):
            assert "Only the operator" in page.enter_secret({"secret": wrong})["error"]
        is_labeller = role is Role.LABELLER
        message = "You are the operator in this browser now." if is_labeller else ""
        assert page.enter_secret({"secret": "sesame"}) == {"message": message, "redirect_to_login": not is_labeller}


def test_the_home_summary_groups_files_by_kind(ctx):
    (ctx.home / "runs" / "1").mkdir(parents=True)
    (ctx.home / "runs" / "1" / "x").write_bytes(b"x" * 1000)
    (ctx.home / "something").write_bytes(b"x" * 10)
    (ctx.home / "engine.log").write_text("one\ntwo\n")
    found = act(ctx, "home_summary")
    used = dict(found["usage"])
    assert (used["runs"], used["other"], used["logs"]) == (1000, 10, 8)
    assert used["labels and metrics (lab.db)"] >= (ctx.home / "lab.db").stat().st_size
    assert "reward models" not in used
    assert (found["path"], found["log"]) == (str(ctx.home), "one\ntwo")
    assert found["free"] > 0


def test_the_end_of_a_long_log(tmp_path):
    log = tmp_path / "engine.log"
    assert tail(log) == ""
    log.write_text("".join(f"line {i}\n" for i in range(100_000)))
    lines = tail(log).splitlines()
    assert (len(lines), lines[-1]) == (TAIL_LINES, "line 99999")
    log.write_bytes(b"\xff" * (TAIL_BYTES + 5))
    assert len(tail(log)) == TAIL_BYTES


def test_a_reset_of_a_project_on_own_prompts_keeps_them(ctx):
    act(ctx, "create", **new(prompt_set="own", text="a\nb\nc\nd", name="mine"))
    before = ctx.project
    after = copy_project(ctx.db, before)
    assert [prompt.text for prompt in prompts(ctx.db, after.id, "train")] == ["a", "b", "c"]
    assert get_project(ctx.db, after.id).name == "mine 2"


def test_runs_are_counted_by_project(ctx):
    from rlhf_lab.common.enums import Source
    from rlhf_lab.common.records import LabelSnapshot
    from rlhf_lab.store.reward_models import add_reward_model

    row = add_reward_model(ctx.db, 1, "x", config={}, report={}, snapshot=LabelSnapshot((), "d" * 64, Source.HUMAN))
    create_run(ctx.db, 1, row.id, "r", config={}, manifest={}, total_steps=1)
    new_project(ctx.db)
    assert [(line["model_count"], line["run_count"]) for line in state(ctx)["projects"]] == [(0, 0), (1, 1)]
