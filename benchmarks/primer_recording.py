"""Records what the screen Learn shows before the project has numbers of its own: assets/learn/recording.json.

    python benchmarks/primer_recording.py --out assets/learn/recording.json

The embedded model and the judge "cheerful": the held-out labels of a reward model, the tokens of the last step of a short run,
the curves of a long run that nothing holds near the base, and the likeliest next tokens of the base after a prompt.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import torch

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
from rlhf_lab.ui.learn.api import curves_of
from rlhf_lab.ui.train.token_view import token_view

JUDGE = "cheerful"
LABELS = 60
NEXT_TOKENS = 8
DIGITS = 4


def train(cache: ModelCache, project: Project, reward_model: int, steps: int, **changes: Any) -> int:
    """The id of a finished run."""
    config = PolicyConfig.for_algorithm(
        "ppo", steps=steps, max_new_tokens=project.max_new_tokens, temperature=project.temperature, **changes
    )
    row = create_run(
        cache.db,
        project.id,
        reward_model,
        "recorded",
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
        "logprobs": [round(value, DIGITS) for value in best.values.tolist()],
    }


def record(home: Path, steps: int, unheld_steps: int) -> dict[str, Any]:
    with Database.open(home) as db:
        cache = ModelCache(home, db)
        judge = load_judge(JUDGE)
        project = new_project(db, prompt_set=judge.prompt_set, seed=0, name="recorded")
        sample_pairs(cache, project, PairRequest(LABELS))
        label_with_judge(db, project.id, judge, LABELS)
        reward_model = train_reward_model(cache, project, RewardRequest(RewardConfig(), Source.SIMULATED)).id
        run = train(cache, project, reward_model, steps)
        unheld = train(
            cache,
            project,
            reward_model,
            unheld_steps,
            beta=0.0,
            kl_budget=None,
            lr_schedule="constant",
            lr=3e-3,
            token_rows=0,
        )
        return {
            "view": token_view(db, run, steps),
            "curves": curves_of(db, get_run(db, unheld)),
            "differences": get_reward_model(db, reward_model).report["differences"],
            "distribution": next_tokens(cache, project),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--unheld-steps", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = record(Path(folder) / "home", args.steps, args.unheld_steps)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{args.out}: {args.out.stat().st_size} bytes; curves {result['curves']}")


if __name__ == "__main__":
    main()
