"""What was told to a run: which of it a resume follows."""

from rlhf_lab.common.enums import EventKind
from rlhf_lab.common.records import RunEvent


def setting_key(event: RunEvent) -> tuple[str, ...] | None:
    """What an event sets: of two that set the same, the one told later stands. None: nothing."""
    if event.kind is EventKind.SET:
        return ("set", str(event.payload.get("name")))
    return ("reward",) if event.kind is EventKind.SWITCH_REWARD else None


def effective_events(events: list[RunEvent]) -> list[RunEvent]:
    """The applied events that a resume follows, in the order they were told.

    An event is out when a later-told one set the same at the same step or before it: that happens when a run failed, somebody
    turned the knob back, and the run went on from a checkpoint before the mistake. The mistake is not to be made again.
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
    """Of events that take effect at one moment, in the order they were told, those that show: of several that set the same, the
    last. The others need not be carried out: a reward model that is switched to and away from is not loaded."""
    last = {setting_key(event): event for event in events}
    return [event for event in events if setting_key(event) is None or last[setting_key(event)] is event]
