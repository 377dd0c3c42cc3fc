"""What goes wrong on a machine, in words for people."""

from rlhf_lab.errors import LabError
from rlhf_lab.models.oom import is_out_of_memory
from rlhf_lab.training.distributed import Distributed, is_lost_peer_error


def explain_error(error: BaseException) -> str:
    """What to show a person: our own errors speak for themselves, others are named."""
    if isinstance(error, LabError):
        return str(error)
    if is_out_of_memory(error):
        return (
            "the machine's memory is too small for this, even in the smallest pieces. Close other programs, or choose a "
            f"smaller batch_size, shorter responses (max_new_tokens) or a smaller model. ({type(error).__name__})"
        )
    return f"{type(error).__name__}: {error}. See engine.log in the home."


def explain_distributed_error(error: BaseException, distributed: Distributed, lost_peer_message: str) -> str:
    """The same of an error in one of several processes; broke: what to say where another one is gone."""
    return lost_peer_message if distributed.world_size > 1 and is_lost_peer_error(error) else explain_error(error)
