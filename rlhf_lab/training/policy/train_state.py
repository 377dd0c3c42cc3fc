"""The state of a policy training run: what its updates read and change, and what a checkpoint stores."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlhf_lab.common.progress import ProgressCallback, SamplingCallback, ignore_sampling
from rlhf_lab.config.policy import LIVE_SETTINGS, PolicyConfig
from rlhf_lab.core.reward_scaling import RunningMoments
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.batch import Batch
from rlhf_lab.models.sampling.sampler import PROGRESS_EVERY
from rlhf_lab.training.distributed import Distributed
from rlhf_lab.training.optimizers import make_fused_adam
from rlhf_lab.training.policy import batching
from rlhf_lab.training.policy.attribute_refit import AttributeRefit
from rlhf_lab.training.policy.kl_control import AdaptivePenalty, KLControl, make_kl_control
from rlhf_lab.training.policy.live_reward import LIVE, LiveReward
from rlhf_lab.training.policy.objectives import AdaptiveCoefficients
from rlhf_lab.training.policy.ptx import PtxObjective
from rlhf_lab.training.policy.rollout import CRITIC_ADAPTER, PolicyModel

StateDict = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and plain numbers for JSON
SET_BY_HAND = "set_by_hand"  # its name in a saved state; states of version 0.2.0 and earlier do not have it
IGNORED = "ignored_attributes"  # in a saved state: the reward model's own correction, if it ignores some

#: The names of the numbers in a saved state, and how many values each has.
NUMBER_COUNTS = {
    "step": 1, "episodes": 1, "beta": 1, "lr": 1, "penalty": 1, "scores": 3, "kl_budget": 2, "score_unit": 2, "best": 2,
    "rounding": 1, "measured_kl": 1, "update_fraction": 1,
}  # fmt: skip
#: Not in checkpoints of earlier versions.
OPTIONAL_NUMBERS = ("episodes", "kl_budget", "score_unit", "best", "rounding", "measured_kl", "update_fraction")


class ChosenText(NamedTuple):
    """A prompt and a response to learn from, as token ids."""

    prompt: list[int]
    response: list[int]


@dataclass
class TrainState:
    """The policy, its optimizer and the values that change from step to step.

    parameters: everything that is trained. kl_control: of beta, and what a KL budget measures. penalty_controller: of the
    coefficient of ppo_penalty. lr: before its schedule. set_by_hand: the live settings that a person has set, see
    `current_value`. score_moments: running mean and variance of the scores. episodes: responses trained on so far. rounding:
    what rounding adds to the KL of an update, nats per token, None before it is measured. attribute_refit: of a reward model that
    ignores attributes. live: the heads of a live run. chosen_texts: the texts that the last round of rejection sampling chose;
    for dpo, the responses of all rounds that edited answers are preferred to. interrupted_s: seconds that on_progress spent on
    other work and in pauses.
    """

    config: PolicyConfig
    policy: PolicyModel
    parameters: list[nn.Parameter]
    ptx: PtxObjective | None
    distributed: Distributed
    on_progress: ProgressCallback
    optimizer: torch.optim.Adam = field(init=False)
    kl_control: KLControl = field(init=False)
    penalty_controller: AdaptivePenalty | None = None
    score_moments: RunningMoments = field(default_factory=RunningMoments)
    lr: float = field(init=False)
    set_by_hand: dict[str, float] = field(default_factory=dict)
    rounding: float | None = None
    attribute_refit: AttributeRefit | None = None
    live: LiveReward | None = None
    chosen_texts: list[ChosenText] = field(default_factory=list)
    steps_done: int = 0
    episodes: int = 0
    on_sampling: SamplingCallback = ignore_sampling
    interrupted_s: float = 0.0

    def __post_init__(self) -> None:
        config = self.config
        self.lr = config.lr
        self.optimizer = make_fused_adam(torch.optim.Adam, self.parameters, lr=config.lr, eps=config.adam_eps)
        self.kl_control = make_kl_control(config)
        if config.spec.loss == "ratio_and_penalty":
            self.penalty_controller = AdaptivePenalty(config.penalty_coef, config.penalty_kl_min, config.penalty_kl_max)

    def working_time(self) -> float:
        """Seconds of a clock that stands still while the training is interrupted."""
        return time.monotonic() - self.interrupted_s

    @property
    def measures_updates(self) -> bool:
        """Whether the KL of a step's updates matters."""
        return self.kl_control.has_budget or self.penalty_controller is not None

    def sampling_progress(self, done: int, rows: int, total: int) -> ProgressCallback:
        """The callback for sampling `rows` texts at once, when `done` of `total` texts are sampled."""
        tokens = 0

        def on_progress() -> None:
            nonlocal tokens
            tokens += PROGRESS_EVERY
            self.on_sampling(done + rows * min(1.0, tokens / self.config.max_new_tokens), total)
            self.on_progress()

        self.on_sampling(done, total)
        return on_progress

    @property
    def coefficients(self) -> AdaptiveCoefficients:
        """The loss coefficients that the controllers adapt."""
        penalty_coef = self.penalty_controller.value if self.penalty_controller is not None else 0.0
        return AdaptiveCoefficients(self.current_value("beta"), penalty_coef)

    def minibatches(self, epoch: int, batch: Batch) -> Iterator[list[Tensor]]:
        """The minibatches of an epoch of the next step, each a list of micro-batches (row indices) of all processes."""
        return batching.minibatches(self.steps_done, epoch, batch, self.config, self.distributed.world_size)

    def current_value(self, name: str) -> float:
        """beta or lr of the next step: the value that a person has set, otherwise what controller and schedule compute.

        What controllers adapt stands still while a person's value is used, because the measured KL is due to that value.
        Handed back ("automatic"), they go on from their own last state.
        """
        if name in self.set_by_hand:
            return self.set_by_hand[name]
        return self.kl_control.value if name == "beta" else self.lr * self.lr_multiplier()

    def update_kl_control(self, sequence_kl: float, n: int) -> None:
        """Update the KL control with the KL of a step of n responses, in nats per response."""
        self.kl_control.update(sequence_kl, n, adapt="beta" not in self.set_by_hand)

    def lr_multiplier(self) -> float:
        """The factor of the automatic learning rate in the next step: that of the schedule, as the KL control changes it.

        Past the last step of the config the schedule keeps its final value.
        """
        fraction_done = min(1.0, self.steps_done / self.config.steps)
        multiplier = 1.0
        if self.config.lr_schedule == "linear":
            multiplier = 1 - fraction_done
        elif self.config.lr_schedule == "cosine":
            multiplier = 0.5 * (1 + math.cos(math.pi * fraction_done))
        return self.kl_control.lr_multiplier(multiplier, self.steps_done)

    def state_dict(self) -> StateDict:
        """Everything a resume needs: copies of the tensors, on their own device so that nothing waits for a GPU, and numbers."""
        policy, adapters = self.policy, self.policy.adapters
        tensors = {f"adapter.{k}": v for k, v in adapters.tensors(policy.adapter).items()}
        tensors |= {f"value.{k}": v.detach().clone() for k, v in policy.value_head.state_dict().items()}
        if policy.value_trunk == "critic":
            tensors |= {f"critic.{k}": v for k, v in adapters.tensors(CRITIC_ADAPTER).items()}
        for i, parameter in enumerate(self.parameters):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimiser.{i}.{key}"] = value.detach().clone()
        if self.chosen_texts:
            tensors |= _pack_texts(self.chosen_texts)
        if self.attribute_refit is not None:
            tensors |= self.attribute_refit.tensors()
        if self.live is not None:
            tensors |= self.live.tensors()
        numbers: dict[str, Any] = {
            "algorithm": self.config.algorithm, "step": self.steps_done, "episodes": self.episodes,
            "lr": self.lr, SET_BY_HAND: dict(self.set_by_hand), **self.kl_control.numbers(),
        }  # fmt: skip
        if self.attribute_refit is not None:
            numbers[IGNORED] = self.attribute_refit.own_correction
        if self.live is not None:
            numbers |= self.live.numbers(self.kl_control)
        if self.penalty_controller is not None:
            numbers["penalty"] = self.penalty_controller.value
        if self.config.scale_scores:
            numbers["scores"] = [self.score_moments.count, self.score_moments.mean, self.score_moments.m2]
        if self.rounding is not None:
            numbers["rounding"] = self.rounding
        return tensors, numbers

    def load_state_dict(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises TrainingError for the state of another algorithm or of other settings, ModelError if an adapter does not fit;
        nothing is restored then.
        """
        self._check_fits(tensors, numbers)

        def with_prefix(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        policy, adapters = self.policy, self.policy.adapters
        adapters.load_tensors(policy.adapter, with_prefix("adapter."))
        policy.value_head.load_state_dict(with_prefix("value."))
        if policy.value_trunk == "critic":
            adapters.load_tensors(CRITIC_ADAPTER, with_prefix("critic."))
        self.optimizer.state.clear()
        self.optimizer.zero_grad()  # a step that was interrupted leaves gradients behind
        for i, parameter in enumerate(self.parameters):
            if optimizer_state := with_prefix(f"optimiser.{i}."):
                self.optimizer.state[parameter] = to_device_of(parameter, optimizer_state)
        self.steps_done = int(numbers["step"])
        self.episodes = int(numbers.get("episodes", self.steps_done * self.config.batch_size))  # absent in old ones
        self.lr = float(numbers["lr"])
        self.set_by_hand = {name: float(value) for name, value in numbers.get(SET_BY_HAND, {}).items()}
        rounding = numbers.get("rounding")
        self.rounding = None if rounding is None else float(rounding)
        self.chosen_texts = _unpack_texts(tensors) if "chosen.ids" in tensors else []
        refit = self.attribute_refit  # the state may be from before a switch of the reward model
        if refit is not None and numbers.get(IGNORED) == refit.own_correction:
            refit.load(tensors)
        if self.live is not None and LIVE in numbers:
            self.live.load(tensors, numbers, self.kl_control)
        self.kl_control.load(numbers)
        if self.penalty_controller is not None:
            self.penalty_controller.value = float(numbers["penalty"])
        if self.config.scale_scores:
            self.score_moments.count, self.score_moments.mean, self.score_moments.m2 = numbers["scores"]

    def _check_fits(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Raises TrainingError if a saved state lacks parts of this one, has additional parts, or is damaged.

        Old checkpoints do not name their algorithm.
        """
        algorithm = numbers.get("algorithm", self.config.algorithm)
        if algorithm != self.config.algorithm:
            raise TrainingError(
                f'the state is of the algorithm "{algorithm}", and this run trains with "{self.config.algorithm}". '
                "Load it with the settings that it was saved with, or start a new run."
            )
        expected = {
            "penalty": self.penalty_controller is not None,
            "scores": self.config.scale_scores,
            "critic": self.policy.value_trunk == "critic",
        }
        actual = {
            "penalty": "penalty" in numbers,
            "scores": "scores" in numbers,
            "critic": any(name.startswith("critic.") for name in tensors),
        }
        for part, is_expected in expected.items():
            if actual[part] != is_expected:
                raise TrainingError(
                    f"the state does not fit the settings of this run: it {'lacks' if is_expected else 'also has'} {part}. "
                    "Load it with the settings that it was saved with, or start a new run."
                )
        own_tensors, own_numbers = self.state_dict()
        problem = self._find_bad_tensor(tensors, own_tensors) or _find_bad_number(numbers, own_numbers)
        if problem:
            raise TrainingError(f"the state cannot be loaded: {problem}. Load another checkpoint, or start a new run.")

    def _find_bad_tensor(self, tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> str:
        """What is wrong with the tensors of a saved state; "" if nothing is. expected: the tensors of this state. `Adapters`
        checks the names and shapes of the policy's."""
        heads = ("value.", "critic.")
        shapes = {name: value.shape for name, value in expected.items() if name.startswith(heads)}
        if different := shapes.keys() ^ {name for name in tensors if name.startswith(heads)}:
            name = min(different)
            return f"it {'lacks' if name in shapes else 'also has'} {name}"
        for name in tensors:
            if name.startswith("optimiser."):
                _, index, key = name.split(".", 2)
                if not index.isdigit() or int(index) >= len(self.parameters):
                    return f"{name} belongs to no parameter that this run trains"
                shapes[name] = torch.Size() if key == "step" else self.parameters[int(index)].shape
        for name, value in tensors.items():
            if value.shape != shapes.get(name, value.shape):
                return f"{name} has the shape {tuple(value.shape)}, not {tuple(shapes[name])}"
            if not value.isfinite().all():
                return f"{name} holds a number that is not finite"
        return ""


def _find_bad_number(numbers: dict[str, Any], expected: dict[str, Any]) -> str:
    """Which number of a saved state is missing or not finite; "" if none is. expected: the numbers of this state."""
    for name, count in NUMBER_COUNTS.items():
        value = numbers.get(name)
        if value is None:
            if name in expected and name not in OPTIONAL_NUMBERS:
                return f"it lacks {name}"
            continue
        values = [value] if count == 1 else list(value) if isinstance(value, list | tuple) else []
        is_numeric = all(isinstance(item, int | float) and math.isfinite(item) for item in values)
        if len(values) != count or not is_numeric:
            return f"{name} is {value!r:.80}, not {'a number' if count == 1 else f'{count} numbers'}"
    by_hand = numbers.get(SET_BY_HAND, {})
    is_valid = isinstance(by_hand, dict) and all(
        name in LIVE_SETTINGS and isinstance(value, int | float) and math.isfinite(value)
        for name, value in by_hand.items()
    )
    return "" if is_valid else f"{SET_BY_HAND} is {by_hand!r:.80}, not a number for some of {', '.join(LIVE_SETTINGS)}"


def _pack_texts(texts: list[ChosenText]) -> dict[str, Tensor]:
    """Texts as tensors: ids of all prompts and responses in a row, and (N, 2) lengths."""
    return {
        "chosen.ids": torch.tensor([token for text in texts for part in text for token in part]),
        "chosen.lengths": torch.tensor([[len(part) for part in text] for text in texts]),
    }


def _unpack_texts(tensors: dict[str, Tensor]) -> list[ChosenText]:
    parts = [part.tolist() for part in tensors["chosen.ids"].split(tensors["chosen.lengths"].flatten().tolist())]
    return [ChosenText(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]


def to_device_of(parameter: Tensor, optimizer_state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of an optimizer's tensors on the device of their parameter: fused Adam reads its step count there too."""
    return {key: value.clone().to(parameter.device) for key, value in optimizer_state.items()}
