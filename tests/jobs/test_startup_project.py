"""The project at startup: its settings, invalid values refused before a download, and failures that can be retried."""

import threading
import time

import pytest
from support.fake_hub import CONFIG, FakeHub, model

from rlhf_lab.errors import ConfigError, LabError, ModelError
from rlhf_lab.jobs import startup_project
from rlhf_lab.jobs.hub_download import DownloadStatus, ModelDownloader
from rlhf_lab.jobs.memory_estimate import DeviceMemory
from rlhf_lab.jobs.model_inspection import ModelFacts
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.jobs.startup_project import (
    Setting,
    StartupPhase,
    StartupProject,
    check_memory,
    plan_project,
    read_settings,
)
from rlhf_lab.store.projects import current_project, projects, prompts

NAME = "someone/small"
WAIT = 30.0
LARGE_MACHINE = DeviceMemory("cpu", "CPU", 10**12)
SPACE = DeviceMemory("cpu", "CPU", 16 * 10**9)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    found = FakeHub(tmp_path / "cache").use(monkeypatch)
    found.models[NAME] = model(tmp_path / "remote")
    monkeypatch.setattr(startup_project, "detect_device", lambda: LARGE_MACHINE)
    return found


def read(**variables):
    return read_settings({}, {f"RLHF_LAB_{name}": value for name, value in variables.items()})


class Startup(StartupProject):
    def __init__(self, db, **variables):
        self.log = []
        self.downloads = ModelDownloader()
        super().__init__(db, read(**variables), self.downloads, self.log.append)

    def run(self):
        assert self.start()
        self.wait_for(StartupPhase.READY, StartupPhase.FAILED)
        return self.state()

    def wait_for(self, *phases):
        limit = time.monotonic() + WAIT
        while self.state().phase not in phases:
            assert time.monotonic() < limit, self.state()
            time.sleep(0.01)


def test_an_option_wins_over_its_variable_and_empty_variables_count_as_none():
    environment = {"RLHF_LAB_MODEL": "a/b ", "RLHF_LAB_PROMPTS": " ", "RLHF_LAB_TEMPERATURE": "0.5"}
    settings = read_settings({"model": None, "temperature": "1", "prompts": None, "home": "x"}, environment)
    assert settings["model"] == Setting("a/b", "RLHF_LAB_MODEL")
    assert settings["temperature"] == Setting("1", "--temperature")
    assert "prompts" not in settings
    assert not read_settings({}, {"RLHF_LAB_MODEL": ""})
    assert read(SYSTEM_PROMPT="Be kind.")
    assert read_settings({"system_prompt": ""}, {})["system_prompt"] == Setting("", "--system-prompt")


def test_the_settings_choose_model_prompts_system_prompt_temperature_and_length(db, hub, tmp_path):
    (tmp_path / "mine.txt").write_text("\n".join(f"prompt {i}" for i in range(9)))
    settings = {"MODEL": NAME, "PROMPTS": str(tmp_path / "mine.txt"), "SYSTEM_PROMPT": "Be kind.", "TEMPERATURE": "0.5"}
    settings["MAX_NEW_TOKENS"] = "96"
    startup = Startup(db, **settings)
    state = startup.run()
    assert state.phase is StartupPhase.READY
    assert 'The project "small: mine.txt" is open.' in state.message
    assert startup.log[0].startswith(f"Downloading {NAME}, ")
    project = current_project(db)
    assert (project.model, project.prompt_set) == (NAME, "mine.txt")
    assert (project.system_prompt, project.temperature, project.max_new_tokens) == ("Be kind.", 0.5, 96)
    assert [prompt.text for prompt in prompts(db, project.id, "eval")] == ["prompt 7", "prompt 8"]
    assert Startup(db, **settings).run().phase is StartupPhase.READY  # the same settings: the same project
    assert Startup(db, **settings | {"PROMPTS": "reviews"}).run().phase is StartupPhase.READY
    assert [project.prompt_set for project in projects(db)] == ["mine.txt", "reviews"]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"MODEL": "someone/wrong"}, ModelError, "RLHF_LAB_MODEL: The Hub cannot be reached"),
        ({"MODEL": "embedded", "PROMPTS": "poems"}, ConfigError, 'RLHF_LAB_PROMPTS: "poems" is neither a bundled'),
        ({"MODEL": "embedded", "TEMPERATURE": "warm"}, ConfigError, 'RLHF_LAB_TEMPERATURE: "warm" is not a temperature'),
        ({"MODEL": "embedded", "TEMPERATURE": "nan"}, ConfigError, 'RLHF_LAB_TEMPERATURE: "nan" is not a temperature'),
        ({"MODEL": "embedded", "TEMPERATURE": "9"}, ConfigError, "RLHF_LAB_TEMPERATURE: temperature = 9"),
        ({"MAX_NEW_TOKENS": "many"}, ConfigError, 'RLHF_LAB_MAX_NEW_TOKENS: "many" is not a number of tokens'),
        ({"MAX_NEW_TOKENS": "5000"}, ConfigError, "RLHF_LAB_MAX_NEW_TOKENS: max_new_tokens = 5000"),
        ({"MODEL": "embedded", "TEMPLATE_ARGUMENTS": "fast"}, ConfigError, "RLHF_LAB_TEMPLATE_ARGUMENTS: .*not a JSON"),
        ({"MODEL": "embedded", "TEMPLATE_ARGUMENTS": '{"a": 1}'}, ConfigError, "RLHF_LAB_TEMPLATE_ARGUMENTS: .*missing"),
        ({"PROMPTS": "tales"}, ConfigError, "RLHF_LAB_PROMPTS applies to a new project.*RLHF_LAB_MODEL"),
        ({"SYSTEM_PROMPT": "x"}, ConfigError, "RLHF_LAB_SYSTEM_PROMPT applies to a new project"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_the_name_of_its_variable(db, hub, settings, error, words):
    with pytest.raises(error, match=words):
        plan_project(db, read(**settings), LARGE_MACHINE)
    assert projects(db) == []


def test_a_hub_that_cannot_be_reached_can_be_tried_again(db, hub):
    pick_project(db, None)
    startup = Startup(db, MODEL=NAME)
    hub.error = ConnectionError("no route")
    state = startup.run()
    assert state.phase is StartupPhase.FAILED
    assert "RLHF_LAB_MODEL: The Hub cannot be reached (ConnectionError)" in state.message
    assert startup.log == [f"error: {state.message}"]
    assert current_project(db).model == "embedded"
    hub.error = None
    assert startup.run().phase is StartupPhase.READY
    assert current_project(db).model == NAME
    assert startup.log[-1] == 'The project "small: tales" is open.'


def test_a_download_that_breaks_off_is_a_failure_and_goes_on_at_the_next_try(db, hub):
    def fail(file):
        raise OSError("reset by peer")

    startup = Startup(db, MODEL=NAME)
    hub.between, original = fail, hub.between
    state = startup.run()
    assert state.phase is StartupPhase.FAILED
    assert "someone/small: The download was interrupted (OSError: check the network). Start it again" in state.message
    hub.between = original
    assert startup.run().phase is StartupPhase.READY


def test_while_it_is_downloaded_it_is_not_started_twice(db, hub):
    arrived, released = threading.Event(), threading.Event()
    hub.between = lambda file: (arrived.set(), released.wait(WAIT))
    startup = Startup(db, MODEL=NAME)
    assert startup.start()
    assert arrived.wait(WAIT)
    assert startup.state().phase is StartupPhase.DOWNLOADING
    assert startup.downloads.progress().status is DownloadStatus.RUNNING
    assert not startup.start()
    startup.dismiss()  # for failures only
    assert startup.state() is not None
    assert startup.downloads.cancel()
    released.set()
    startup.wait_for(StartupPhase.FAILED)
    assert "Cancelled" in startup.state().message
    startup.dismiss()
    assert startup.state() is None
    assert projects(db) == []


def test_an_unexpected_error_does_not_end_the_lab(db, hub, monkeypatch):
    monkeypatch.setattr(startup_project, "inspect_model", lambda name: 1 / 0)
    state = Startup(db, MODEL=NAME).run()
    assert (state.phase, state.message) == (StartupPhase.FAILED, "ZeroDivisionError: see the log of the lab.")


#: Shapes of Qwen2.5 with 7.6 billion parameters: at least 15 GB of weights and 13 GB of their merged copy in bfloat16.
QWEN_7B = CONFIG | {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064}  # fmt: skip


def test_a_model_that_cannot_fit_16_gb_is_refused_before_its_download(db, hub, tmp_path, monkeypatch):
    facts = ModelFacts("big/model", "Qwen2ForCausalLM", QWEN_7B, 7_615_616_512, None, (("model.safetensors", 1),))
    monkeypatch.setattr(startup_project, "inspect_model", lambda name: facts)
    with pytest.raises(ModelError) as caught:
        plan_project(db, read(MODEL="big/model"), SPACE)
    message = str(caught.value)
    assert message.startswith("RLHF_LAB_MODEL: big/model does not fit: a run with it needs ")
    assert "GB (in bfloat16) to" in message
    assert "16.0 GB are free here (CPU). Choose a smaller model, such as HuggingFaceTB/SmolLM2-135M-Instruct" in message
    startup = Startup(db, MODEL="big/model")
    monkeypatch.setattr(startup_project, "detect_device", lambda: SPACE)
    assert startup.run().phase is StartupPhase.FAILED
    assert startup.downloads.progress() is None


def test_a_model_that_is_close_gets_a_warning_and_a_small_one_none():
    facts = ModelFacts("m", "LlamaForCausalLM", CONFIG, 1800, None)
    assert check_memory(facts, SPACE, 64, refuse=True) == ""
    warning = check_memory(facts, DeviceMemory("cpu", "CPU", 700_000_000), 64, refuse=True)  # the program takes 650 MB
    assert warning.startswith("m may be too large: a run with it needs about 0.7 GB of memory, and 0.7 GB are free")
    with pytest.raises(LabError, match="m does not fit"):
        check_memory(facts, DeviceMemory("cpu", "CPU", 600_000_000), 64, refuse=True)
    for length, is_warned in ((64, False), (4096, True)):
        assert bool(check_memory(facts, DeviceMemory("cpu", "CPU", 1_000_000_000), length, refuse=False)) == is_warned
