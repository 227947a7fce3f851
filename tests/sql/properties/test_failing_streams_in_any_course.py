"""Any course of claims, failures, retries and rebuilds of a bulk view acknowledges each event once, in order."""

from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millrace.resources.errors import LeaseLost, MillraceError
from millrace.resources.event_store import EventStore, Lease, LogEvent
from tests.support.factories import append_to, ids_of_one_partition, rows, set_clock, value
from tests.support.views.failing_streams import at, failure


@dataclass
class Model:
    """What should be: per stream all events of the view's time, and how many of them are acknowledged."""

    store: EventStore
    view: str
    ids: list[str]
    events: dict[str, list[UUID]] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    held: list[list[Lease]] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.register_view(self.view, mode="bulk", max_attempts=2)
        self.store.seek_view(self.view, "RESET_TO_LATEST")
        self.events = {decider_id: [] for decider_id in self.ids}
        self.acknowledged = dict.fromkeys(self.ids, 0)

    def append(self, a: int, b: int) -> None:
        for event, decider_id in zip(
            append_to(self.store, *(chosen := [self.ids[(a * 7 + n * b) % len(self.ids)] for n in range(1 + a % 5)])),
            chosen,
            strict=True,
        ):
            self.events[decider_id].append(event.event_id)

    def claim(self, a: int, b: int) -> None:
        if leases := self.store.claim_batch(self.view, f"owner {b}", 1 + a % 7):
            self.held.append(leases)

    def commit(self, a: int, b: int) -> None:
        """Commit one of the batches, in part, with failures; a zombie's is refused as a whole."""
        if not self.held:
            return
        leases = self.held.pop(a % len(self.held))
        in_force = {
            tuple(row)
            for row in rows(
                self.store.connection,
                "select partition, lease_token from event_store.checkpoints where view = %s and lease_owner is not null",
                self.view,
            )
        }
        if not {(lease.partition, lease.lease_token) for lease in leases} <= in_force:
            with pytest.raises(LeaseLost):
                self.store.commit_batch(self.view, leases)
            return
        locked = {
            row[0]
            for row in rows(
                self.store.connection, "select decider_id from event_store.stream_locks where view = %s", self.view
            )
        }
        parts = [
            replace(
                lease, to_position=lease.to_position - (a + b) % (lease.to_position - lease.from_position + 1) * (b % 2)
            )
            for lease in leases
        ]
        done: list[LogEvent] = []
        with self.store.connection.transaction():
            for lease, part in zip(leases, parts, strict=True):
                events = self.store.read_batch(self.view, lease)
                poisoned = sorted({e.decider_id for e in events if (b >> self.ids.index(e.decider_id)) & 1})
                if poisoned:
                    self.store.fail_streams(self.view, lease, [failure(each) for each in poisoned])
                done += [
                    e
                    for e in events
                    if e.decider_id not in poisoned and (e.decider_id in locked or e.position < part.to_position)
                ]
            self.store.commit_batch(self.view, parts)
        for event in done:
            self.acknowledge(event.decider_id, event.event_id)

    def acknowledge(self, decider_id: str, event_id: UUID) -> None:
        """Exactly the next event of the stream: none twice, none out of order."""
        assert self.events[decider_id][self.acknowledged[decider_id]] == event_id
        self.acknowledged[decider_id] += 1

    def release(self, a: int, _: int) -> None:
        if self.held:
            self.store.release_batch(self.view, self.held[a % len(self.held)])

    def wait(self, a: int, b: int) -> None:
        """Let time pass: a moment, or so long that every lease and delay is over."""
        later = 10_000 if b % 3 == 0 else a
        now = value(self.store.connection, "select event_store_private.clock() + %s * interval '1 second'", later)
        set_clock(self.store.connection, now.isoformat())

    def retry(self, _: int, __: int) -> None:
        self.store.retry_dead_letters(self.view)

    def discard(self, a: int, _: int) -> None:
        if dead := self.store.dead_letters(self.view):
            chosen = dead[a % len(dead)]
            event = self.store.discard_dead_letter(self.view, chosen.decider, chosen.decider_id, "because")
            assert event is not None
            self.acknowledge(chosen.decider_id, event.event_id)

    def rebuild(self, a: int, b: int) -> None:
        """Leave the position where it is: a rebuild that is given up again."""
        try:
            lease = self.store.claim_partition(self.view, a % 2, f"owner {b}")
        except MillraceError:
            return
        self.store.release_batch(self.view, [lease])

    def check(self) -> None:
        """Every event below a checkpoint is acknowledged, or its stream has a lock; checkpoints do not move back."""
        below = rows(
            self.store.connection,
            """
            select e.decider_id, e.event_id, k.view is not null
            from event_store.checkpoints c
            join event_store.event_log l on l.partition = c.partition and l.position < c.position
            join event_store.events e using ("offset")
            left join event_store.stream_locks k on k.view = c.view and k.decider_id = e.decider_id and k.decider = e.decider
            where c.view = %s and e.event_id = any (%s)
            """,
            self.view,
            [event_id for events in self.events.values() for event_id in events],
        )
        for decider_id, event_id, locked in below:
            if self.events[decider_id].index(event_id) >= self.acknowledged[decider_id]:
                assert locked, f"{decider_id} lost {event_id}"
        positions = dict(
            rows(
                self.store.connection,
                "select partition, position from event_store.checkpoints where view = %s",
                self.view,
            )
        )
        assert all(positions[partition] >= position for partition, position in self.positions.items())
        self.positions = positions

    def drain(self) -> None:
        """With nothing failing any more, everything is acknowledged and no lock is left."""
        self.wait(0, 0)
        self.held.clear()
        self.store.retry_dead_letters(self.view)
        for _ in range(20):
            self.claim(10**6, 0)
            if not self.held:
                break
            self.commit(0, 0)
        assert self.acknowledged == {decider_id: len(events) for decider_id, events in self.events.items()}
        assert rows(self.store.connection, "select * from event_store.stream_locks where view = %s", self.view) == []


STEPS = [
    "append",
    "append",
    "claim",
    "claim",
    "commit",
    "commit",
    "commit",
    "release",
    "wait",
    "wait",
    "retry",
    "discard",
    "rebuild",
]


def test_any_course_of_a_bulk_view_acknowledges_each_event_once_in_order(orders: EventStore) -> None:
    at(orders, 0)
    ids = [*ids_of_one_partition(orders.connection, 3), *ids_of_one_partition(orders.connection, 1, partition=1)]
    views = iter(range(10_000))

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 15), st.integers(0, 15)), min_size=8, max_size=30))
    def run(steps: list[tuple[str, int, int]]) -> None:
        model = Model(orders, f"v{next(views)}", ids)
        model.append(4, 1)
        for name, a, b in steps:
            getattr(model, name)(a, b)
            model.check()
        model.drain()
        model.check()

    run()
