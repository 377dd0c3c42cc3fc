"""Experiments that go wrong on purpose, for teaching. Each is a project of the embedded model and a run in it.

Its reward model is trained on a judge's labels of the shipped pairs.

benchmarks/experiments.py measures what the descriptions promise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import Project
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.jobs.retraining import submit_training
from rlhf_lab.jobs.run_control import NO_REWARD_MODEL, start_run
from rlhf_lab.judges.builtin import builtin_judge
from rlhf_lab.rewards.terms import parse_lines
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import open_project

JUDGE = "cheerful"
MAX_LABELS = 60  # of the shipped pairs, which are fewer
UNHELD: Mapping[str, Any] = MappingProxyType({"beta": 0.0, "kl_budget": None, "lr_schedule": "constant"})


@dataclass(frozen=True)
class Experiment:
    """title: the name of its run. look_for: what to watch. explanation: of what happened. noise: of the judge, in standard
    deviations of its scores. settings: of the run, by name. reward_terms: in place of a reward model, one per line."""

    title: str
    look_for: str
    explanation: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    reward_terms: str = ""

    @property
    def project_name(self) -> str:
        return f"Experiment: {self.title}"

    def config(self, project: Project) -> PolicyConfig:
        return PolicyConfig.for_algorithm(
            "ppo",
            seed=project.seed,
            temperature=project.temperature,
            max_new_tokens=project.max_new_tokens,
            **self.settings,
        )


EXPERIMENTS = {
    "no-penalty": Experiment(
        "No KL penalty",
        "Watch the score and gold: when do they part, and how large is the KL by then?",
        "Nothing held the policy near the base. It learned to please the judge, then found texts that the reward model "
        "overrates: the score went on rising while gold fell from its best. This is over-optimisation.",
        {**UNHELD, "lr": 0.003, "steps": 60},
    ),
    "length": Experiment(
        "A reward for long texts",
        "The reward is 1 for a text of 60 words or more. Watch gold, and read the samples under Train.",
        "The policy got what was asked for: long texts. Nobody asked for good ones, so gold did not follow.",
        {**UNHELD, "lr": 0.003, "steps": 40},
        reward_terms="length:60-400",
    ),
    "large-updates": Experiment(
        "Updates that are too large",
        "Four passes over each batch with a large learning rate. Watch the clip fraction (the share of tokens past their bound), "
        "then the KL and gold.",
        "Clipping stops a token once its ratio has passed the bound, but the step that carries it there may be of any size, and "
        "other tokens are carried along. So it slows a large update down; it does not stop it.",
        {"kl_budget": None, "lr_schedule": "constant", "lr": 0.01, "epochs": 4, "cliprange": 0.2, "steps": 25},
    ),
    "random-labels": Experiment(
        "Labels that are half wrong",
        "The judge answered at random. Watch the score and gold: do they rise together?",
        "The reward model learned from chance what to praise. The policy follows it all the same: the score rises, and gold goes "
        "its own way. With so few labels even the accuracy under Reward model can deceive; look at its interval.",
        {"steps": 40},
        noise=100.0,
    ),
}


def start_experiment(db: Database, home: Path, name: str, seed: int = 0) -> Project:
    """Open a new project with the judge's labels, and queue its reward model and run. Raises ConfigError for an unknown name."""
    if name not in EXPERIMENTS:
        raise ConfigError(f'There is no experiment "{name}"; choose one of {", ".join(EXPERIMENTS)}.')
    experiment, judge = EXPERIMENTS[name], builtin_judge(JUDGE)
    project = new_project(
        db, model=EMBEDDED_MODEL, prompt_set=judge.prompt_set, seed=seed, name=experiment.project_name, opens=False
    )
    label_with_judge(db, project.id, judge, MAX_LABELS, noise=experiment.noise, seed=seed)
    config = experiment.config(project)
    if experiment.reward_terms:
        terms = parse_lines(experiment.reward_terms, home, with_model=False)
        start_run(db, home, project.id, config, NO_REWARD_MODEL, judge=JUDGE, name=experiment.title, reward_terms=terms)
    else:
        submit_training(
            db, project.id, Source.SIMULATED, then_run={"config": config.to_dict(), "name": experiment.title}
        )
    open_project(db, project.id)  # only now: in the open project training starts by itself
    return project
