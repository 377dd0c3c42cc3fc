"""Error messages for users."""

from rlhf_lab.errors import LabError
from rlhf_lab.models.memory_errors import is_out_of_memory
from rlhf_lab.training.distributed import Distributed, is_lost_peer_error


def explain_error(error: BaseException) -> str:
    """The message for the user: the text of a LabError; type and text of other errors."""
    if isinstance(error, LabError):
        return str(error)
    if is_out_of_memory(error):
        return (
            "out of memory, even with the smallest batches. Close other programs, or choose a "
            f"smaller batch_size, shorter responses (max_new_tokens) or a smaller model. ({type(error).__name__})"
        )
    return f"{type(error).__name__}: {error}. See engine.log in the home."


def explain_distributed_error(error: BaseException, distributed: Distributed, lost_peer_message: str) -> str:
    """Like `explain_error`, for one of several processes. lost_peer_message: returned if another process has died."""
    return lost_peer_message if distributed.world_size > 1 and is_lost_peer_error(error) else explain_error(error)
