"""Selects the control events that are replayed when a run is resumed."""

from rlhf_lab.common.enums import EventKind
from rlhf_lab.common.records import RunEvent
from rlhf_lab.config.policy import AUTOMATIC


def setting_key(event: RunEvent) -> tuple[str, ...] | None:
    """The setting that an event changes, or None. Of several events for the same setting, the last one is effective."""
    if event.kind is EventKind.SET:
        return ("set", str(event.payload.get("name")))
    return (event.kind.value,) if event.kind in (EventKind.SWITCH_REWARD, EventKind.HEAD) else None


def effective_events(events: list[RunEvent]) -> list[RunEvent]:
    """The applied events that a resumed run replays, in the order of their submission.

    An event is dropped if one submitted later changed the same setting at the same or an earlier step. This happens if a setting
    made a run fail, the user reverted it, and the run was resumed from a checkpoint before the mistake, which must not be
    repeated.
    """
    applied = [event for event in events if event.applied_step is not None]
    return [
        event
        for i, event in enumerate(applied)
        if setting_key(event) is None
        or not any(
            setting_key(later) == setting_key(event) and (later.applied_step or 0) <= (event.applied_step or 0)
            for later in applied[i + 1 :]
        )
    ]


def last_per_setting(events: list[RunEvent]) -> list[RunEvent]:
    """The last event for each setting, of events that take effect at the same step, in the order of their submission.

    The others need not be applied; for example, a reward model that is replaced again at once is not loaded.
    """
    last = {setting_key(event): event for event in events}
    return [event for event in events if setting_key(event) is None or last[setting_key(event)] is event]


def live_value(event: RunEvent) -> float | str:
    """The value that an event of kind SET gives to its setting: a number, or AUTOMATIC. Raises ValueError for anything else."""
    value = event.payload["value"]
    return AUTOMATIC if value == AUTOMATIC else float(value)
