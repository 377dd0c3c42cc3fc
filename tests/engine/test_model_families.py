"""The whole loop on a tiny model of each family: pairs, labels, reward model, PPO, export.

docs/MODEL_FAMILIES.md names what is special about each. tests/models/test_architectures.py compares their numbers with
those of transformers.
"""

import zipfile

import pytest
import torch
from peft import PeftModel
from support import model_families, tiny_models
from support_worker import Lab
from transformers import AutoModelForCausalLM

from rlhf_lab.common.enums import JobStatus
from rlhf_lab.exporters.adapter_zip import export_adapter, export_reward_model
from rlhf_lab.store.reward_models import latest_reward_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:fan_in_fan_out is set to False but the target module is `Conv1D`", model_families.IGNORED_WARNING
)
STEPS = 2


@pytest.fixture
def save_long(tmp_path, monkeypatch):
    """Save a model of a family with a context of 96 tokens, because jobs have texts of up to 64. It may also stop at <stop>."""
    monkeypatch.setitem(tiny_models.SIZES, "context", 96)
    monkeypatch.setitem(model_families.SHARED, "max_position_embeddings", 96)

    def save(kind, **sizes):
        folder = model_families.save(kind, tmp_path / "model", **sizes)
        tiny_models.set_generation_config(folder, eos_token_id=[tiny_models.EOS, tiny_models.STOP])
        return folder

    return save


def run_loop(folder, home):
    """The lab after the loop, and the id of its run."""
    lab = Lab(home, folder)
    lab.label(8)
    assert lab.train_reward().status is JobStatus.DONE
    run_id = lab.run(steps=STEPS, checkpoint_every=STEPS)
    job = lab.train(run_id)
    assert (job.status, job.error) == (JobStatus.DONE, "")
    return lab, run_id


@pytest.mark.parametrize("kind", model_families.PARAMETERS)
def test_the_whole_loop(save_long, tmp_path, kind):
    folder = save_long(kind)
    lab, run_id = run_loop(folder, tmp_path / "home")
    backbone, adapters = lab.worker.model_cache.load_project(lab.project)
    assert backbone.eos_ids == (tiny_models.EOS, tiny_models.STOP)
    (_, first), *_, (step, last) = lab.curve(run_id)
    assert step == STEPS
    assert abs(first["objective/kl"]) < 1e-5  # the policy begins at the reference
    assert all(torch.isfinite(torch.tensor(float(value))) for value in last.values())

    out = tmp_path / "out"
    reward_zip = export_reward_model(lab.db, lab.folder, latest_reward_model(lab.db, lab.project.id).id, out)
    assert "reward_head.safetensors" in zipfile.ZipFile(reward_zip).namelist()
    zipfile.ZipFile(export_adapter(lab.db, lab.folder, run_id, out)).extractall(tmp_path / "policy")
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tuned = PeftModel.from_pretrained(plain, tmp_path / "policy").eval()
    ids = torch.tensor([tiny_models.ids("the cat sat so . the moon and a small dog")])
    slot = lab.worker.model_cache.load_checkpoint(f"run/{run_id}/latest", "exported")
    with torch.no_grad(), adapters.using(slot):
        logits = backbone.logits(backbone.hidden(ids))
    with torch.no_grad():
        expected = tuned(ids).logits[..., : len(backbone.tokenizer)]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    lab.db.close()
