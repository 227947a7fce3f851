"""Hot calls while somebody holds an old snapshot, beside the same calls without one: CPU of the backend.

Two databases of one server take turns, round by round: in the one a repeatable-read transaction is open from the start.
A round appends an event and takes it through the log, a rows view, a bulk view and a producer. The numbers are the time
on the CPU of a call, the median of the last tenth of the rounds.
"""

import json
import time
import uuid
from pathlib import Path
from statistics import median
from typing import LiteralString

import psycopg

from benchmarks.event_store.bench import Bench, Database, Result

SECONDS = 120
ROUNDS = 20
TARGET = 0.5


def snapshot(bench: Bench) -> list[Result]:
    """Measure each call beside a held snapshot and without one."""
    free, held = bench.ours(), bench.ours()
    sides = [Side(free), Side(held)]
    with psycopg.connect(held.dsn) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from event_store.events")
        ends = time.monotonic() + bench.size(SECONDS, 0)
        rounds = 0
        while rounds < ROUNDS or time.monotonic() < ends:
            for side in sides:
                side.round(rounds)
            rounds += 1
    tail = max(rounds // 10, 1)
    results = []
    for name in sides[0].taken:
        without, beside = (median(side.taken[name][-tail:]) / 1000 for side in sides)
        what = f"{name}, a snapshot held for {rounds:,} rounds"
        results.append(Result(what, beside, without, "us of CPU", ratio=without / beside, target=TARGET))
    for side in sides:
        side.connection.close()
    return results


class Side:
    """One database and the session whose CPU is measured."""

    def __init__(self, database: Database) -> None:
        """Register a view of each mode and a producer."""
        self.connection = database.connect()
        self.taken: dict[str, list[int]] = {}
        self._clock = Path(f"/proc/{self.connection.info.backend_pid}/schedstat")
        self._call("register_view('rows')", "select from event_store.register_view('rows', '-infinity')")
        self._call(
            "register_view('bulk')", "select from event_store.register_view('bulk', '-infinity', v_mode => 'bulk')"
        )
        ((self._epoch,),) = self._call("register_producer", "select epoch from event_store.register_producer('p', 0)")
        self.taken.clear()

    def round(self, number: int) -> None:
        """Let an event and a message go through everything."""
        event_id = uuid.uuid4()
        self._call(
            "append_event",
            "select from event_store.append_event('placed', %s, 'order', %s, '{}', %s, null)",
            (event_id, f"o-{number}", event_id),
        )
        self._call("sequence_events", "select event_store_platform.sequence_events()")
        self._call("dispatch_events", "select event_store_platform.dispatch_events('rows')")
        (event,) = self._call(
            "stream_events", 'select decider_id, "offset" from event_store.stream_events(%s)', ("rows",)
        )
        self._call("ack_event", "select from event_store.ack_event('rows', %s::text, %s)", event)
        claims = self._call(
            "claim_batch",
            "select partition, to_position, lease_token from event_store.claim_batch(%s, %s)",
            ("bulk", "me"),
        )
        columns = tuple([claim[n] for claim in claims] for n in range(3))
        self._call("commit_batch", "select event_store.commit_batch('bulk', %s, %s, %s)", columns)
        state = json.dumps({"total": number})
        self._call(
            "ingest_events",
            "select from event_store.ingest_events('p', 0, %s, %s, null, %s)",
            (self._epoch, number, state),
        )
        self._call("poll_views", "select * from event_store_platform.poll_views()")
        self._call("sequence_events, nothing new", "select event_store_platform.sequence_events()")
        self._call("claim_batch, nothing new", "select * from event_store.claim_batch(%s, %s)", ("bulk", "me"))

    def _call(self, name: str, query: LiteralString, arguments: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        before = self._on_cpu()
        cursor = self.connection.execute(query, arguments, prepare=True)
        found = cursor.fetchall()
        self.taken.setdefault(name, []).append(self._on_cpu() - before)
        return found

    def _on_cpu(self) -> int:
        """Return the time that the backend has been on a CPU, in nanoseconds."""
        return int(self._clock.read_text().split()[0])
