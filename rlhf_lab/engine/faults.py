"""What goes wrong on a machine, in words for people."""

from rlhf_lab.errors import LabError
from rlhf_lab.models.memory import out_of_memory
from rlhf_lab.trainers.group import Group, lost_contact


def explain_error(error: BaseException) -> str:
    """What to show a person: our own errors speak for themselves, others are named."""
    if isinstance(error, LabError):
        return str(error)
    if out_of_memory(error):
        return (
            "the machine's memory is too small for this, even in the smallest pieces. Close other programs, or choose a "
            f"smaller batch_size, shorter responses (max_new_tokens) or a smaller model. ({type(error).__name__})"
        )
    return f"{type(error).__name__}: {error}. See engine.log in the home."


def explain_together(error: BaseException, group: Group, broke: str) -> str:
    """The same of an error in one of several processes; broke: what to say where another one is gone."""
    return broke if group.size > 1 and lost_contact(error) else explain_error(error)
