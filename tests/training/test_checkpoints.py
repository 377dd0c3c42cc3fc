"""Checkpoints are written completely or not at all."""

import errno
import json
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from support import tiny_models

from rlhf_lab.common import atomic
from rlhf_lab.common.checkpoint_index import (
    STATE_FILE,
    TRAINER_FILE,
    best_step,
    checkpoint_folder,
    checkpoint_steps,
    newest_intact_step,
)
from rlhf_lab.common.model_files import ADAPTER_FILE
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.training import checkpoints
from rlhf_lab.training.checkpoints import load_latest, save_checkpoint


def new_run(tmp_path):
    return Path(tempfile.mkdtemp(dir=tmp_path))


def adapters_in(folder, seed=0):
    return tiny_models.adapters_of(tiny_models.load(folder), "policy", seed=seed)


def save(run, adapters, step, **numbers):
    tensors = {f"adapter.{k}": v for k, v in adapters.tensors("policy").items()}
    tensors |= {"value.w": torch.full((3,), float(step)), "optimiser.0.step": torch.tensor(float(step))}
    return save_checkpoint(
        run, adapters, "policy", tensors, {"step": step, "beta": 0.1 + step / 3, "lr": 1e-3 / 3} | numbers
    )


def step_of(run):
    return load_latest(run)[1]["step"]


def test_round_trip(llama_folder, tmp_path):
    run = new_run(tmp_path)
    adapters = adapters_in(llama_folder)
    assert load_latest(run) is None
    folder = save(run, adapters, 7)
    assert folder == checkpoint_folder(run, 7) == run / "step-000007"
    tensors, numbers = load_latest(run)
    assert numbers == {"step": 7, "beta": 0.1 + 7 / 3, "lr": 1e-3 / 3}
    expected = {f"adapter.{k}": v for k, v in adapters.tensors("policy").items()}
    expected |= {"value.w": torch.full((3,), 7.0), "optimiser.0.step": torch.tensor(7.0)}
    assert tiny_models.same(tensors, expected)
    assert sorted(path.name for path in run.iterdir()) == ["step-000007"]


def test_loaded_tensors_are_aligned_like_computed_ones(llama_folder, tmp_path):
    """Otherwise a product of them differs in its last digits from that of the run that was not interrupted."""
    run, adapters = new_run(tmp_path), adapters_in(llama_folder)
    tensors = {f"adapter.{k}": v for k, v in adapters.tensors("policy").items()}
    odd = {f"odd.{length}": torch.randn(length) for length in range(1, 40)}
    save_checkpoint(run, adapters, "policy", tensors | odd, {"step": 1})
    loaded, _ = load_latest(run)
    assert [name for name, tensor in odd.items() if tensor.clone().data_ptr() % 64] == []
    assert [name for name, tensor in loaded.items() if tensor.data_ptr() % 64] == []


def test_the_best_checkpoint_is_named_and_can_be_resumed(llama_folder, tmp_path):
    """It keeps the state for a resume, which all others but the newest two lose; the newest state names it."""
    run, adapters = new_run(tmp_path), adapters_in(llama_folder)
    assert best_step(run) is None
    save(run, adapters, 5, best=None)
    assert best_step(run) is None
    for step in (10, 15, 20, 25):
        save(run, adapters, step, best=[10, 1.5])
    assert best_step(run) == 10
    assert [step for step in checkpoint_steps(run) if (checkpoint_folder(run, step) / TRAINER_FILE).exists()] == [
        10,
        20,
        25,
    ]
    save(run, adapters, 30, best=[30, 2.0])
    assert best_step(run) == 30
    (checkpoint_folder(run, 30) / STATE_FILE).write_text("{")
    assert best_step(run) == 10
    (checkpoint_folder(run, 10) / ADAPTER_FILE).unlink()
    assert best_step(run) is None


def test_the_adapter_is_in_pefts_format(llama_folder, tmp_path):
    run = new_run(tmp_path)
    adapters = adapters_in(llama_folder)
    folder = save(run, adapters, 1)
    again = Adapters(tiny_models.load(llama_folder))
    again.load("x", folder)
    assert tiny_models.same(again.tensors("x"), adapters.tensors("policy"))


def test_the_newest_is_loaded_and_a_step_can_be_written_again(llama_folder, tmp_path):
    run = new_run(tmp_path)
    for step in (5, 10, 100):
        save(run, adapters_in(llama_folder, seed=step), step)
    assert (step_of(run), checkpoint_steps(run)) == (100, [5, 10, 100])
    other = adapters_in(llama_folder, seed=1)
    save(run, other, 100)
    loaded = {k.removeprefix("adapter."): v for k, v in load_latest(run)[0].items() if k.startswith("adapter.")}
    assert tiny_models.same(loaded, other.tensors("policy"))


def test_older_checkpoints_keep_the_adapter_alone(llama_folder, tmp_path):
    run = new_run(tmp_path)
    adapters = adapters_in(llama_folder)
    for step in (1, 2, 3, 4):
        save(run, adapters, step)
    assert checkpoint_steps(run) == [1, 2, 3, 4]
    resumable = [step for step in (1, 2, 3, 4) if (checkpoint_folder(run, step) / TRAINER_FILE).exists()]
    assert resumable == [3, 4]
    assert all((checkpoint_folder(run, step) / ADAPTER_FILE).is_file() for step in (1, 2, 3, 4))


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "state", "empty state"])
@pytest.mark.parametrize("file", [ADAPTER_FILE, TRAINER_FILE])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(llama_folder, tmp_path, file, damage):
    run = new_run(tmp_path)
    adapters = adapters_in(llama_folder)
    for step in (1, 2):
        save(run, adapters, step)
    path = checkpoint_folder(run, 2) / file
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "flipped":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "missing":
        path.unlink()
    else:
        (checkpoint_folder(run, 2) / STATE_FILE).write_text(
            "" if damage == "empty state" else json.dumps({"numbers": {}})
        )
    assert step_of(run) == 1


def test_newest_intact_step_skips_damaged_adapters(llama_folder, tmp_path):
    run = new_run(tmp_path)
    assert newest_intact_step(run) is None
    adapters = adapters_in(llama_folder)
    for step in (1, 2, 3):
        save(run, adapters, step)
    assert newest_intact_step(run) == 3
    (checkpoint_folder(run, 3) / TRAINER_FILE).write_bytes(b"")  # no text is written by it
    assert newest_intact_step(run) == 3
    for step, left in ((3, 2), (2, 1), (1, None)):  # the first no longer has the state for a resume
        (checkpoint_folder(run, step) / ADAPTER_FILE).write_bytes(b"")
        assert newest_intact_step(run) == left


def test_load_latest_is_none_if_all_are_damaged(llama_folder, tmp_path):
    run = new_run(tmp_path)
    save(run, adapters_in(llama_folder), 1)
    (checkpoint_folder(run, 1) / ADAPTER_FILE).write_bytes(b"")
    assert load_latest(run) is None


class Crash(BaseException):
    """The process dies here: nothing after it runs, not even error handling for Exception."""


@pytest.mark.parametrize("where", ["save_file", "file_sha256", "fsync_path", "rename"])
def test_a_crash_at_any_point_leaves_the_last_checkpoint(llama_folder, tmp_path, where):
    """Killed before the adapter, between the files, before the rename: the next start finds step 1 and can continue."""
    run = new_run(tmp_path)
    adapters = adapters_in(llama_folder)
    save(run, adapters, 1)

    def die(*args):
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        if where == "rename":
            patch.setattr("pathlib.Path.rename", die)
        else:
            patch.setattr(atomic if where == "fsync_path" else checkpoints, where, die)
        with pytest.raises(Crash):
            save(run, adapters, 2)
    assert (checkpoint_steps(run), step_of(run)) == ([1], 1)
    save(run, adapters, 2)
    assert (checkpoint_steps(run), step_of(run)) == ([1, 2], 2)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: No space")]
)
def test_a_full_disk_keeps_the_last_checkpoint_and_says_so(llama_folder, tmp_path, error):
    run = new_run(tmp_path)
    adapters = adapters_in(llama_folder)
    save(run, adapters, 1)

    def full(*args):
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "save_file", full)
        with pytest.raises(TrainingError, match=r"step 2 could not be written .*No space.* Free some disk space"):
            save(run, adapters, 2)
    assert sorted(path.name for path in run.iterdir()) == [
        "step-000001"
    ]  # checked first, because loading would clean up
    assert step_of(run) == 1
