"""The Python API: train a policy on prompts and a reward function of your own, without the page and without a database.

    from rlhf_lab.api import Trainer

    trainer = Trainer("HuggingFaceTB/SmolLM2-135M-Instruct", prompts, reward, steps=100)
    for result in trainer:
        print(result.step, result.metrics["objective/scores"], result.metrics["objective/kl"])
    trainer.save("adapter")

The names that this module documents, those of the settings (`PolicyConfig`) and of the metrics (docs/METRICS.md) are stable: a
version that changes one says so in CHANGELOG.md. docs/FROM_TRL.md compares all of it with TRL's PPOTrainer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.training.checkpoints import load_latest, save_checkpoint
from rlhf_lab.training.model_trial import load_tried_backbone
from rlhf_lab.training.policy.invariants import to_score_tensor
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer, TextOrIds, to_token_ids
from rlhf_lab.training.policy.weighted_reward import WeightedReward

#: N prompts and N responses as texts -> N finite numbers, in any unit.
Reward = Callable[[list[str], list[str]], Sequence[float] | Tensor]

START_ADAPTER = "start"
#: The label of the reward function: its mean, in its own unit, is the metric "objective/reward/function".
REWARD_LABEL = "function"
#: Settings of runs in the lab, which have processes, labels and people.
LAB_SETTINGS = ("processes", "shard_backbone", "live", "brake_every", "sample_count")


class Generated(NamedTuple):
    """N responses: token ids, the stop token last unless max_new_tokens cut the response off; and texts without it."""

    responses: list[list[int]]
    texts: list[str]


@dataclass(frozen=True)
class _RewardFunction:
    """A reward function as the only term of a WeightedReward. Raises ConfigError unless it returns a number per response."""

    function: Reward

    def scores(
        self, prompts: Sequence[str], responses: Sequence[str], on_progress: ProgressCallback = no_progress
    ) -> list[list[float]]:
        on_progress()
        values = to_score_tensor(self.function(list(prompts), list(responses))).tolist()
        if len(values) != len(responses):
            raise ConfigError(
                f"the reward function returned {len(values)} numbers for {len(responses)} responses. Return one for each."
            )
        return [values]


class Trainer(PolicyTrainer):
    """Trains a LoRA adapter of a frozen causal language model with PPO, or another algorithm that learns from rollouts.

    Iterating takes the remaining steps, `run_step` one of them: it samples responses to prompts, scores them, and updates the
    policy. `step` is one step on responses and scores of your own. Both return a `StepResult`: its number (`step`, from 1) and
    its `metrics` by the names of docs/METRICS.md. `set_live_setting` changes lr or beta between steps.

    The frozen reference of the KL penalty is the policy as it starts, so the first KL is 0: the model, or with start_adapter
    the model with that adapter.

    Args:
        model: a folder with config.json, tokenizer and *.safetensors, a Hub id, or "embedded". A GPU is used if there is one;
            the dtype is chosen by speed unless the variable RLHF_LAB_DTYPE names one.
        prompts: texts; a model with a chat template reads each as the user's message. Each step takes batch_size of them, in
            shuffled order. Not needed for `step`.
        reward: a function of the prompts and responses of a step, as two lists of texts without special tokens. With a kl_budget
            (the default) its values minus their mean, over their standard deviation, on 128 responses of the reference are the
            scores; it is called for these first. Without one, beta is in its unit per nat. Not needed for `step`.
        start_adapter: the folder of a LoRA adapter in PEFT's format. Training goes on from it, with its layers, ranks and scale.
        sample_prompts: their responses, by the same random numbers every time, are in `samples` of a result every sample_every
            steps.
        eval_prompts: held-out prompts; with a KL budget, "eval/scores" and "eval/kl" are measured on them every checkpoint_every
            steps.
        ptx_texts: pretraining texts, for ptx_coef > 0.
        settings: of `PolicyConfig`, such as steps, lr, beta, batch_size, max_new_tokens, algorithm, seed. The others have the
            values recommended for the algorithm, but score_clip, which is None.

    Raises ConfigError for a setting that is unknown, out of range or only for runs in the lab; ModelError if the model, the
    adapter or a prompt cannot be used. All errors are `rlhf_lab.errors.LabError` and say what to do.
    """

    def __init__(
        self, model: str | Path, prompts: Sequence[str] = (), reward: Reward | None = None, *,
        start_adapter: str | Path | None = None, sample_prompts: Sequence[str] = (), eval_prompts: Sequence[str] = (),
        ptx_texts: Sequence[str] = (), **settings: Any,
    ) -> None:  # fmt: skip
        config = _config(settings)
        if any(isinstance(texts, str) for texts in (prompts, sample_prompts, eval_prompts, ptx_texts)):
            raise ConfigError("prompts are lists of texts, not single texts. Put a single one in a list.")
        backbone = load_tried_backbone(str(model))
        adapters = Adapters(backbone)
        if start_adapter is not None:
            adapters.load(START_ADAPTER, Path(start_adapter))
        scorer = None
        if reward is not None:
            scorer = WeightedReward(backbone, None, _RewardFunction(reward), {REWARD_LABEL: 1.0})
        task = PolicyTask(
            prompts, scorer, sample_prompts, ptx_texts=ptx_texts, eval_prompts=eval_prompts,
            start=None if start_adapter is None else START_ADAPTER,
        )  # fmt: skip
        super().__init__(backbone, adapters, task, config)

    @property
    def config(self) -> PolicyConfig:
        """All settings."""
        return self.state.config

    def __iter__(self) -> Iterator[StepResult]:
        """Take steps until `steps_done` is the setting steps. Raises what `run_step` raises."""
        while self.steps_done < self.config.steps:
            yield self.run_step()

    def generate(self, prompts: Sequence[TextOrIds], *, seed: int | None = None) -> Generated:
        """A response of the current policy to each of N prompts (texts or token ids): at most max_new_tokens, at the temperature.

        seed: the same seed draws the same random numbers at every step; None: others at each step. A repeated call without a step
        in between therefore returns the same responses.
        Raises ConfigError for other elements, ModelError for a prompt that leaves no room for a response.
        """
        ids = [to_token_ids(self.backbone, prompt, self.backbone.encode_prompt) for prompt in prompts]
        purpose = ("generate", seed) if seed is not None else ("generate at step", self.steps_done)
        tokens = self.sample_responses(ids, *purpose)[1].tokens if ids else []
        return Generated(
            tokens, [self.backbone.decode(row, after=prompt) for prompt, row in zip(ids, tokens, strict=True)]
        )

    def save(self, folder: str | Path) -> None:
        """Write the trained adapter in PEFT's format (adapter_config.json, adapter_model.safetensors), replacing an older one.

        `PeftModel.from_pretrained(model, folder)` loads it; with a start_adapter it replaces that one, on the same model.
        """
        self.adapters.save(self.state.policy.adapter, Path(folder))

    def save_checkpoint(self, folder: str | Path) -> Path:
        """Write folder/step-N with everything that `resume` needs, and the adapter. Of older ones only the newest keeps that.

        Raises TrainingError if the disk is full.
        """
        return save_checkpoint(Path(folder), self.adapters, self.state.policy.adapter, *self.state.state_dict())

    def resume(self, folder: str | Path) -> int:
        """Restore the newest intact checkpoint of `save_checkpoint` and return its step; 0 if there is none.

        The next steps are those of a run without a break, on a CPU bit for bit, if all arguments are the same.
        Raises TrainingError for a checkpoint of other settings.
        """
        checkpoint = load_latest(Path(folder))
        if checkpoint is not None:
            self.state.load_state_dict(*checkpoint)
        return 0 if checkpoint is None else self.steps_done


def _config(settings: dict[str, Any]) -> PolicyConfig:
    """The config of a Trainer. Raises ConfigError."""
    if unusable := [name for name in LAB_SETTINGS if name in settings]:
        raise ConfigError(f"{', '.join(unusable)}: only for runs that the lab starts, not for a Trainer. Leave it out.")
    config = PolicyConfig.for_algorithm(**{"algorithm": "ppo", "score_clip": None} | settings)
    if config.is_offline:
        raise ConfigError(
            f"{config.algorithm} learns from texts that exist, not from rollouts. Choose ppo or another algorithm for a Trainer, "
            f"or start {config.algorithm} in the lab."
        )
    return config
