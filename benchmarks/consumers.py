"""Measures how many events per second `consume` hands to a handler that does nothing, and pushes to a URL.

The baseline of `consume` is the loop that a user of fstore-sql writes: stream_events(100), then an ack_event each. Both
sides have the same backlog and eight threads. Pushes go to a receiver that answers after 50 ms, of 16 streams and of 1.

    python -m benchmarks consumers --other-schema schema.sql [--only NAME …] [--rounds 5] [--small] [--postgres DIR]
"""

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

from benchmarks.event_store.bench import Bench, Database, Result, fill
from benchmarks.event_store.program import run
from millrace.event_store import Delivery
from millrace.handlers.consumer import consume
from millrace.handlers.declaration import subscription
from millrace.handlers.log_lines import Counters
from millrace.handlers.push import CONCURRENCY, push_events

WORKERS = 8
PATIENCE_S = 300
TARGET = 10_000
ANSWER_S = 0.05
VIEW = "view-1"
CHUNK = 100


def rate(bench: Bench) -> list[Result]:
    """Measure the events per second, against the other schema's loop and against the target."""
    ours, theirs = bench.ours(), bench.theirs()
    for database in (ours, theirs):
        database.register_views(1)
    numbers = count()
    x, y = bench.in_turn(
        lambda: handled_per_second(ours, f"consume-{next(numbers)}", bench.size(10_000, 40)),
        lambda: acknowledged_per_second(theirs, f"consume-{next(numbers)}", bench.size(600, 20)),
    )
    what = f"consume with {WORKERS} threads against stream_events({CHUNK}) + an ack each"
    return [
        Result(what, x, y, ratio=x / y, target=2.5),
        Result("the same against the target", x, TARGET, ratio=x / TARGET, target=1),
    ]


def handled_per_second(database: Database, label: str, streams: int) -> float:
    """Append to new streams, then consume until nothing is left; the time includes the start and dispatching."""
    events = fill(database, label, streams)
    database.run("select event_store_platform.sequence_events()")
    stop = threading.Event()
    counters: dict[str, Counters] = {}

    @subscription(view=VIEW, concurrency=WORKERS)
    def handle(_: Delivery) -> None:
        pass

    began = time.perf_counter()
    consumer = threading.Thread(
        target=consume, args=(database.dsn, [handle]), kwargs={"stop": stop, "counters": counters}
    )
    consumer.start()
    try:
        while not counters or counters[VIEW].handled < events:
            if time.perf_counter() - began > PATIENCE_S:
                raise RuntimeError(f"Not all of {events} events were handled: {counters}")
            time.sleep(0.005)
        return events / (time.perf_counter() - began)
    finally:
        stop.set()
        consumer.join()


def acknowledged_per_second(database: Database, label: str, streams: int) -> float:
    """Append to new streams of fstore-sql, then take events and acknowledge each until nothing is left."""
    events = fill(database, label, streams)
    consumed = 0
    with database.connect() as connection:
        began = time.perf_counter()
        while batch := connection.execute(
            'select decider_id, "offset" from stream_events(%s, %s::int)', (VIEW, CHUNK)
        ).fetchall():
            for event in batch:
                connection.execute("select * from ack_event(%s, %s, %s)", (VIEW, *event))
            consumed += len(batch)
        seconds = time.perf_counter() - began
    if consumed != events:
        raise RuntimeError(f"{consumed} events were consumed, not {events}")
    return events / seconds


def pushes(bench: Bench) -> list[Result]:
    """Measure the events per second that a receiver gets, of many streams at once against one at a time."""
    database = bench.ours()
    with receiver() as url:
        database.run(f"select from event_store.register_view('hook', '-infinity', v_edge_function_url => '{url}')")
        numbers = count()

        def pushed(concurrency: int, streams: int) -> float:
            events = fill(database, f"push-{next(numbers)}", streams)
            database.run("select event_store_platform.sequence_events()")
            report = push_events(
                database.dsn, "hook", budget_s=PATIENCE_S, idle_s=0, allowed=["127.0.0.1"], concurrency=concurrency
            )
            if report.events != events:
                raise RuntimeError(f"{report.events} events were pushed, not {events}")
            return report.events / report.busy_s

        x, y = bench.in_turn(
            lambda: pushed(CONCURRENCY, bench.size(200, CONCURRENCY)), lambda: pushed(1, bench.size(20, 2))
        )
    return [
        Result(f"pushes at 50 ms an answer, {CONCURRENCY} streams at once against one", x, y, ratio=x / y, target=12)
    ]


class Slow(BaseHTTPRequestHandler):
    """Answers after a while."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Read the event and answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(ANSWER_S)
        self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@contextmanager
def receiver() -> Iterator[str]:
    """Yield the URL of a server that answers after 50 ms."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/events"
        server.shutdown()
        thread.join()


if __name__ == "__main__":
    run(
        argparse.ArgumentParser(description="Functions of subscriptions beside fstore-sql's loop, and pushes."),
        {"consumers": rate, "pushes": pushes},
    )
