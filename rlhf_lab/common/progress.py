"""Types of the progress callbacks of long-running functions."""

from collections.abc import Callable

#: Called at regular points of a long computation. It may do other work, and may raise an exception to stop.
ProgressCallback = Callable[[], None]


def no_progress() -> None:
    """A callback that does nothing."""


#: Called with the fraction that is done, from 0 to 1. May raise an exception to stop.
FractionCallback = Callable[[float], None]


def ignore_fraction(fraction: float) -> None:
    """A callback that does nothing."""


#: Called with the number of texts that are sampled, which may be a fraction, and the number of all.
SamplingCallback = Callable[[float, int], None]


def ignore_sampling(done: float, total: int) -> None:
    """A callback that does nothing."""
