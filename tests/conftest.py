"""Fixtures that several folders of tests share. Torch is imported only where a test asks for a model.

Three processes run the tests (-n 3 in pyproject.toml; -n 0 for one, as a debugger wants): the browser's one after the other in
one of them, the rest file by file. Each, and the engines it starts, uses one thread. Tests of the browser mostly wait, and fail
when they wait too long: the other tests yield to them and use what they leave.
"""

import os
import shutil

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
for own in ("RLHF_LAB_STORE", "RLHF_LAB_DTYPE", "RLHF_LAB_QUANTIZE"):  # somebody's own settings
    os.environ.pop(own, None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class BrowserTogether(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return "browser" if "browser/" in nodeid else super()._split_scope(nodeid)

    return BrowserTogether(config, log)


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
