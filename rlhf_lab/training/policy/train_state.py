"""What a policy's trainer carries over a pause: weights, optimiser, coefficients that steer themselves, running moments."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from rlhf_lab.training.policy.rollout import CRITIC_ADAPTER

if TYPE_CHECKING:
    from rlhf_lab.training.policy.trainer import PolicyTrainer


def capture_state(trainer: "PolicyTrainer") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything a resume needs, copied: tensors, where they lie, so that nothing waits for a GPU, and plain numbers."""
    policy = trainer.policy
    tensors = {f"adapter.{k}": v for k, v in trainer.adapters.tensors(policy.adapter).items()}
    tensors |= {f"value.{k}": v.detach().clone() for k, v in policy.value_head.state_dict().items()}
    if trainer.critic_parameters:
        tensors |= {f"critic.{k}": v for k, v in trainer.adapters.tensors(CRITIC_ADAPTER).items()}
    for i, parameter in enumerate(trainer.parameters):
        for key, value in trainer.optimizer.state.get(parameter, {}).items():
            tensors[f"optimiser.{i}.{key}"] = value.detach().clone()
    numbers: dict[str, Any] = {
        "step": trainer.steps_done, "episodes": trainer.episodes, "beta": trainer.kl_controller.value, "lr": trainer.lr,
    }  # fmt: skip
    if trainer.penalty_controller is not None:
        numbers["penalty"] = trainer.penalty_controller.value
    if trainer.config.scale_scores:
        numbers["scores"] = [trainer.score_moments.count, trainer.score_moments.mean, trainer.score_moments.m2]
    return tensors, numbers


def to_device_of(parameter: Tensor, optimizer_state: dict[str, Tensor]) -> dict[str, Tensor]:
    """An optimiser's tensors of one parameter, copied to where it lies: fused Adam reads its count of steps there too."""
    return {key: value.clone().to(parameter.device) for key, value in optimizer_state.items()}


def restore_state(trainer: "PolicyTrainer", tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Put back what `capture_state` returned. Raises ModelError if an adapter does not fit."""

    def with_prefix(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    trainer.adapters.load_tensors(trainer.policy.adapter, with_prefix("adapter."))
    trainer.policy.value_head.load_state_dict(with_prefix("value."))
    if trainer.critic_parameters:
        trainer.adapters.load_tensors(CRITIC_ADAPTER, with_prefix("critic."))
    trainer.optimizer.state.clear()
    trainer.optimizer.zero_grad()  # a step that was stopped half-way has left some
    for i, parameter in enumerate(trainer.parameters):
        optimizer_state = with_prefix(f"optimiser.{i}.")
        if optimizer_state:
            trainer.optimizer.state[parameter] = to_device_of(parameter, optimizer_state)
    trainer.steps_done = int(numbers["step"])
    trainer.episodes = int(numbers.get("episodes", trainer.steps_done * trainer.config.batch_size))  # not in old ones
    trainer.kl_controller.value, trainer.lr = float(numbers["beta"]), float(numbers["lr"])
    if trainer.penalty_controller is not None:
        trainer.penalty_controller.value = float(numbers["penalty"])
    if trainer.config.scale_scores:
        trainer.score_moments.count, trainer.score_moments.mean, trainer.score_moments.m2 = numbers["scores"]
