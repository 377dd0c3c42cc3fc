"""Which of a run's control events a resume applies."""

from rlhf_lab.common.enums import EventKind
from rlhf_lab.common.records import RunEvent


def setting_key(event: RunEvent) -> tuple[str, ...] | None:
    """The setting that an event changes, None if it changes none. Of two events for one setting the later one counts."""
    if event.kind is EventKind.SET:
        return ("set", str(event.payload.get("name")))
    return ("reward",) if event.kind is EventKind.SWITCH_REWARD else None


def effective_events(events: list[RunEvent]) -> list[RunEvent]:
    """The applied events that a resume replays, in the order they were submitted.

    An event is dropped if a later one changed the same setting at the same step or before it: that happens when a run failed, the
    user reverted the setting, and the run resumed from a checkpoint before the mistake. The mistake must not be repeated.
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
    """Of events that take effect at the same step, in the order they were submitted, the last one for each setting.

    The others need not be applied: a reward model that is switched to and away from is not loaded.
    """
    last = {setting_key(event): event for event in events}
    return [event for event in events if setting_key(event) is None or last[setting_key(event)] is event]
