"""The callbacks that long-running work calls between its pieces."""

from collections.abc import Callable

#: Called between pieces of work. It may do other work, and may raise an exception to stop.
ProgressCallback = Callable[[], None]


def no_progress() -> None:
    """A callback that does nothing."""


#: Called with the fraction that is done, from 0 to 1. May raise an exception to stop.
FractionCallback = Callable[[float], None]


def ignore_fraction(fraction: float) -> None:
    """A callback that does nothing."""
