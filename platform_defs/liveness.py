"""Whether Dagster's daemon lives, and which of its sensors, schedules and code locations still tick."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import dagster as dg

# a schedule whose last tick is older, or a sensor's that is also older than two of its intervals, counts as removed
SENSOR_GONE_S, SCHEDULE_GONE_S = 3600, 8 * 86_400
# a code location that has been silent for a day counts as removed
LOCATION_GONE_S, INTERVALS = 86_400, 2


class Ticking(NamedTuple):
    """A sensor or a schedule that is on, with the state of its newest ticks."""

    kind: str
    name: str
    location: str
    interval_s: float
    at: float
    failures: int
    error: Any

    def is_declared(self, now: float) -> bool:
        """Return whether its last tick is recent enough for it to be declared still."""
        gone_s = SCHEDULE_GONE_S if self.kind == "schedule" else max(SENSOR_GONE_S, INTERVALS * self.interval_s)
        return now - self.at <= gone_s


def beats(instance: dg.DagsterInstance) -> dict[str, float]:
    """Return the last heartbeat of each daemon that the settings require."""
    required = set(instance.get_required_daemon_types())
    return {name: beat.timestamp for name, beat in instance.get_daemon_heartbeats().items() if name in required}


def ticking(instance: dg.DagsterInstance) -> list[Ticking]:
    """Return the sensors and schedules that are on and have ticked."""
    # the classes of states and ticks have no public name
    states = {s.selector_id: s for s in instance.all_instigator_state() if s.status.value != "STOPPED"}
    newest = instance.get_batch_ticks([*states], limit=2) if states else {}
    return [
        Ticking(
            "schedule" if (state := states[selector]).instigator_type.value == "SCHEDULE" else "sensor",
            state.instigator_name,
            state.origin.repository_origin.code_location_origin.location_name,
            getattr(state.instigator_data, "min_interval", None) or 0,
            ticks[0].timestamp,
            ticks[0].consecutive_failure_count,
            next((tick.tick_data.error for tick in ticks if tick.tick_data.error), None),
        )
        for selector, ticks in newest.items()
        if ticks
    ]


def silent_locations(automation: Sequence[Ticking], now: float, silent_s: float) -> dict[str, float]:
    """Return code locations without a tick of a sensor for `silent_s` and for two intervals, and since when."""
    found: dict[str, float] = {}
    for location in {each.location for each in automation}:
        if sensors := [each for each in automation if (each.kind, each.location) == ("sensor", location)]:
            last = max(each.at for each in sensors)
            promised_s = max(silent_s, INTERVALS * min(each.interval_s for each in sensors))
            if 0 < now - last - promised_s <= LOCATION_GONE_S:
                found[location] = last
    return found
