"""Records the run that every lab can play, and what the screen Learn shows before the project has numbers of its own.

    python benchmarks/record_run.py --out assets/recording.json

The embedded model and the judge "cheerful": a run of PPO with the recommended settings, step by step; and for Learn the held-out
labels of its reward model, the curves of a long run that nothing holds near the base, and the likeliest next tokens of the base
after a prompt. The file says when it was made and with which settings.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import torch
from pydantic import TypeAdapter

from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import Project
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine.job_handlers import RewardRequest, train_reward_model
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.store.runs import create_run, get_run
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.learn.api import curves_of
from rlhf_lab.ui.share.recording import Replay, record_replay

JUDGE = "cheerful"
LABELS = 60
NEXT_TOKENS = 8
DIGITS = 4
NAME = "Cheerful tales"
#: Nothing holds this run near the base.
UNHELD: dict[str, Any] = {"beta": 0.0, "kl_budget": None, "lr_schedule": "constant", "lr": 3e-3, "token_rows": 0}


def train(cache: ModelCache, project: Project, reward_model: int, steps: int, **changes: Any) -> int:
    """The id of a finished run."""
    config = PolicyConfig.for_algorithm(
        "ppo", steps=steps, max_new_tokens=project.max_new_tokens, temperature=project.temperature, **changes
    )
    row = create_run(
        cache.db,
        project.id,
        reward_model,
        NAME,
        config=config.to_dict(),
        manifest={"judge": JUDGE},
        total_steps=steps,
    )
    PolicyRun(cache, row.id).execute()
    return row.id


def next_tokens(cache: ModelCache, project: Project) -> dict[str, Any]:
    backbone, adapters = cache.load_project(project)
    text = prompts(cache.db, project.id, "eval")[0].text
    ids = torch.tensor([backbone.tokenizer(text)["input_ids"]])
    with torch.no_grad(), adapters.using(None):
        logprobs = backbone.model(input_ids=ids).logits[0, -1].log_softmax(dim=-1)
    best = logprobs.topk(NEXT_TOKENS)
    return {
        "text": text,
        "tokens": [backbone.tokenizer.decode([i]) for i in best.indices.tolist()],
        "logprobs": best.values.tolist(),
    }


def prepare(cache: ModelCache) -> tuple[Project, int]:
    """A project, and the id of a reward model of the judge's labels."""
    judge = load_judge(JUDGE)
    project = new_project(cache.db, prompt_set=judge.prompt_set, seed=0, name="recorded")
    sample_pairs(cache, project, PairRequest(LABELS))
    label_with_judge(cache.db, project.id, judge, LABELS)
    return project, train_reward_model(cache, project, RewardRequest(RewardConfig(), Source.SIMULATED)).id


def content(cache: ModelCache, project: Project, reward_model: int, run: int, unheld: int) -> dict[str, Any]:
    """What the file says. run, unheld: the ids of finished runs."""
    db = cache.db
    return {
        "about": {
            "written_by": "benchmarks/record_run.py",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "judge": JUDGE,
            "labels": LABELS,
            "settings": get_run(db, run).config,
            "settings_of_learn": get_run(db, unheld).config,
        },
        "replay": TypeAdapter(Replay).dump_python(record_replay(Context(cache.home, db), run), mode="json"),
        "learn": {
            "curves": curves_of(db, get_run(db, unheld)),
            "differences": get_reward_model(db, reward_model).report["differences"],
            "distribution": next_tokens(cache, project),
        },
    }


def rounded(value: Any) -> Any:
    """JSON with DIGITS significant digits, and more for a time."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if abs(value) < 1e9 else round(value)
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def write(file: Path, result: dict[str, Any]) -> None:
    file.write_text(json.dumps(rounded(result), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{file}: {file.stat().st_size} bytes; curves of Learn {result['learn']['curves']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--unheld-steps", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Database.open(Path(folder)) as db:
        cache = ModelCache(Path(folder), db)
        project, reward_model = prepare(cache)
        run = train(cache, project, reward_model, args.steps)
        unheld = train(cache, project, reward_model, args.unheld_steps, **UNHELD)
        write(args.out, content(cache, project, reward_model, run, unheld))


if __name__ == "__main__":
    main()
