"""What a policy's trainer carries over a pause: weights, optimiser, coefficients that steer themselves, running moments."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from rlhf_lab.trainers.rollout import CRITIC

if TYPE_CHECKING:
    from rlhf_lab.trainers.policy import PolicyTrainer


def taken(trainer: "PolicyTrainer") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything a resume needs, copied: tensors, where they lie, so that nothing waits for a GPU, and plain numbers."""
    policy = trainer.policy
    tensors = {f"adapter.{k}": v for k, v in trainer.adapters.tensors(policy.adapter).items()}
    tensors |= {f"value.{k}": v.detach().clone() for k, v in policy.value_head.state_dict().items()}
    if trainer.critic:
        tensors |= {f"critic.{k}": v for k, v in trainer.adapters.tensors(CRITIC).items()}
    for i, parameter in enumerate(trainer.parameters):
        for key, value in trainer.optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser.{i}.{key}"] = value.detach().clone()
    numbers: dict[str, Any] = {
        "step": trainer.steps_done, "episodes": trainer.episodes, "beta": trainer.controller.value, "lr": trainer.lr,
    }  # fmt: skip
    if trainer.penalty is not None:
        numbers["penalty"] = trainer.penalty.value
    if trainer.config.scale_scores:
        numbers["scores"] = [trainer.moments.count, trainer.moments.mean, trainer.moments.spread]
    return tensors, numbers


def beside(parameter: Tensor, entry: dict[str, Tensor]) -> dict[str, Tensor]:
    """An optimiser's tensors of one parameter, copied to where it lies: fused Adam reads its count of steps there too."""
    return {key: value.clone().to(parameter.device) for key, value in entry.items()}


def restore(trainer: "PolicyTrainer", tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Put back what `taken` returned. Raises ModelError if an adapter does not fit."""

    def part(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    trainer.adapters.load_tensors(trainer.policy.adapter, part("adapter."))
    trainer.policy.value_head.load_state_dict(part("value."))
    if trainer.critic:
        trainer.adapters.load_tensors(CRITIC, part("critic."))
    trainer.optimiser.state.clear()
    trainer.optimiser.zero_grad()  # a step that was stopped half-way has left some
    for i, parameter in enumerate(trainer.parameters):
        entry = part(f"optimiser.{i}.")
        if entry:
            trainer.optimiser.state[parameter] = beside(parameter, entry)
    trainer.steps_done = int(numbers["step"])
    trainer.episodes = int(numbers.get("episodes", trainer.steps_done * trainer.config.batch_size))  # not in old ones
    trainer.controller.value, trainer.lr = float(numbers["beta"]), float(numbers["lr"])
    if trainer.penalty is not None:
        trainer.penalty.value = float(numbers["penalty"])
    if trainer.config.scale_scores:
        trainer.moments.count, trainer.moments.mean, trainer.moments.spread = numbers["scores"]
