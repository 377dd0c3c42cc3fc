"""Fixtures shared by several test folders. Torch is imported only for tests that use a model.

Four processes run the tests (-n 4 in pyproject.toml; -n 0 for a single one, for example with a debugger): two of them run the
browser tests, and the other tests are distributed by file. Each process, and each engine that it starts, uses one thread.
Browser tests mostly wait and have time limits, so all other tests run at a lower priority.
"""

import gc
import os
import shutil

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
#: Settings of the person who runs the tests.
for variable in (
    "RLHF_LAB_STORE",
    "RLHF_LAB_DTYPE",
    "RLHF_LAB_QUANTIZE",
    "RLHF_LAB_MIRROR",
    "RLHF_LAB_TRACK",
    "HF_TOKEN",
):
    os.environ.pop(variable, None)


#: Files of tests/browser that run in the first of the two browser processes; they take about half of the total time. All files
#: with runs of PPO are among them, so no two of these run at once. The others use one lab (`lab` of tests/browser/conftest.py).
FIRST_BROWSER = (
    "test_chat.py",
    "test_demo_mode.py",
    "test_full_journey.py",
    "test_operator_only.py",
    "test_people_screen.py",
    "test_restored_lab.py",
    "test_screens.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class TwoBrowsers(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            if "browser/" not in file:
                return file
            return "first browser" if file.endswith(FIRST_BROWSER) else "second browser"

    return TwoBrowsers(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Python's garbage collector would search what is collected again and again, a tenth of the time of collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_ignore_collect(collection_path, config):
    """Do not collect the mutation tests, a third of the time of collection in each process, if all are deselected."""
    return True if collection_path.name == "mutation" and "not mutation" in config.option.markexpr else None


def pytest_collection_modifyitems(items):
    """Browser tests first: a process that has lowered its priority for other tests cannot raise it again."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: "browser/" not in item.nodeid)


def pytest_runtest_setup(item):
    if "PYTEST_XDIST_WORKER" in os.environ and "browser/" not in item.nodeid and os.nice(0) == 0:
        os.nice(10)


@pytest.fixture(autouse=True)
def accepted_configurations(request, monkeypatch):
    """Without the mark `trial`, no process is started that tries the config.json of a model: it takes seconds."""
    if "trial" not in request.keywords:
        monkeypatch.setattr("rlhf_lab.training.trial_process._outcome", lambda name, config, parameters: True)


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory):
    """The home of a lab without projects. A copy takes a third of the time of new tables."""
    from rlhf_lab.store.database import Database

    home = tmp_path_factory.mktemp("empty") / "home"
    Database.open(home).close()
    return home


@pytest.fixture(scope="session")
def project_home(tmp_path_factory):
    """The home of a lab with the project that `new_project` creates. A copy takes a tenth of the time."""
    from rlhf_lab.jobs.project_setup import new_project
    from rlhf_lab.store.database import Database

    home = tmp_path_factory.mktemp("project") / "home"
    with Database.open(home) as db:
        new_project(db)
    return home


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    """A Llama with rotary positions, a separate pad token, and dropout in its config that must stay off."""
    from support import tiny_models

    return tiny_models.save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory):
    """A GPT-2 with absolute positions, which reveal a wrong position id, and no pad token, so pad is EOS."""
    from support import tiny_models

    return tiny_models.save_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def folders(llama_folder, gpt2_folder):
    return {"llama": llama_folder, "gpt2": gpt2_folder}


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """The folder of one model of each family, by kind."""
    from support import model_families

    return {kind: model_families.save(kind, tmp_path_factory.mktemp(kind)) for kind in model_families.KINDS}


@pytest.fixture(scope="session")
def whole_folders(tmp_path_factory):
    """The folder of one model of each kind with fused layers."""
    from support import model_families

    return {kind: model_families.save(kind, tmp_path_factory.mktemp(kind)) for kind in model_families.WHOLE}


@pytest.fixture(scope="session")
def tiled_folders(tmp_path_factory):
    """The same in sizes that the layers in C support."""
    from support import model_families

    return {
        kind: model_families.save(kind, tmp_path_factory.mktemp(f"tiled-{kind}"), **sizes)
        for kind, sizes in model_families.TAKEN.items()
    }


@pytest.fixture
def llama_copy(llama_folder, tmp_path):
    """A copy that a test may modify."""
    return shutil.copytree(llama_folder, tmp_path / "model", dirs_exist_ok=True)


@pytest.fixture
def small_score_unit(monkeypatch):
    """The unit of a run's scores is measured from 12 responses, not 128, which take longer than the steps of a tiny model."""
    monkeypatch.setattr("rlhf_lab.training.policy.run_evaluation.UNIT_RESPONSES", 12)
