"""Fixtures that several folders of tests share. Torch is imported only where a test asks for a model."""

import shutil

import pytest


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    """A Llama with rotary positions, a pad token of its own, and dropout that must stay off."""
    import tiny

    return tiny.save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory):
    """A GPT-2: absolute positions, which show a wrong position id, and no pad token, so that pad is EOS."""
    import tiny

    return tiny.save_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def folders(llama_folder, gpt2_folder):
    return {"llama": llama_folder, "gpt2": gpt2_folder}


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A model of each family, by its kind."""
    import families

    return {kind: families.save(kind, tmp_path_factory.mktemp(kind)) for kind in families.KINDS}


@pytest.fixture
def llama_copy(llama_folder, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(llama_folder, tmp_path / "model", dirs_exist_ok=True)
