"""What PPO-ptx mixes into a run."""

import json
from pathlib import Path

from rlhf_lab.errors import TrainingError
from rlhf_lab.home import ptx_texts_file
from rlhf_lab.pretrain.reading import documents
from rlhf_lab.records import Run

PTX_TEXTS = 1024  # of the corpus, where a run brings none of its own


def pretraining_texts(home: Path, run: Run, seed: int) -> list[str]:
    """The texts that came with the run, or some of the embedded model's corpus. Raises TrainingError when its own are gone."""
    if "ptx_texts" not in run.manifest:
        return documents(seed, PTX_TEXTS, 0)
    file = ptx_texts_file(home, run.id)
    try:
        own: list[str] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"the pretraining texts of run {run.id} cannot be read ({error}). Put {file} back, or start a new run."
        ) from error
    return own
