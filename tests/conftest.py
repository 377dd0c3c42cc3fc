"""Fixtures that several folders of tests share. Torch is imported only where a test asks for a model.

Four processes run the tests (-n 4 in pyproject.toml; -n 0 for one, as a debugger wants): those of the browser in two of them,
the rest file by file. Each, and the engines it starts, uses one thread. Tests of the browser mostly wait, and fail when they
wait too long: the other tests yield to them and use what they leave.
"""

import os
import shutil

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
#: Somebody's own settings.
for own in ("RLHF_LAB_STORE", "RLHF_LAB_DTYPE", "RLHF_LAB_QUANTIZE", "RLHF_LAB_MIRROR", "HF_TOKEN"):
    os.environ.pop(own, None)


#: Files of tests/browser that run in the first of two processes, about half of the time of all. Those that train with an engine
#: are among them, so no two of them run at once.
FIRST_BROWSER = (
    "test_chat.py",
    "test_crash_recovery.py",
    "test_demo_mode.py",
    "test_full_journey.py",
    "test_label.py",
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


def pytest_runtest_setup(item):
    if "PYTEST_XDIST_WORKER" in os.environ and "browser/" not in item.nodeid and os.nice(0) == 0:
        os.nice(10)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    """A Llama with rotary positions, a pad token of its own, and dropout that must stay off."""
    from support import tiny_models

    return tiny_models.save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory):
    """A GPT-2: absolute positions, which show a wrong position id, and no pad token, so that pad is EOS."""
    from support import tiny_models

    return tiny_models.save_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def folders(llama_folder, gpt2_folder):
    return {"llama": llama_folder, "gpt2": gpt2_folder}


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A model of each family, by its kind."""
    from support import model_families

    return {kind: model_families.save(kind, tmp_path_factory.mktemp(kind)) for kind in model_families.KINDS}


@pytest.fixture(scope="session")
def whole_folders(tmp_path_factory):
    """A model of each kind whose layers are computed as one function each."""
    from support import model_families

    return {kind: model_families.save(kind, tmp_path_factory.mktemp(kind)) for kind in model_families.WHOLE}


@pytest.fixture(scope="session")
def tiled_folders(tmp_path_factory):
    """The same in sizes that layers in C take."""
    from support import model_families

    return {
        kind: model_families.save(kind, tmp_path_factory.mktemp(f"tiled-{kind}"), **sizes)
        for kind, sizes in model_families.TAKEN.items()
    }


@pytest.fixture
def llama_copy(llama_folder, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(llama_folder, tmp_path / "model", dirs_exist_ok=True)
