"""The latency from the commit of an append to the row in a read model, while many views trickle."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from uuid import uuid4

import psycopg

from benchmarks.round.bench import Bench, Cpu, Shop, append
from benchmarks.round.models import models
from millrace.drain.collected import ROUND_CONFIGURATION
from millrace.drain.loop import Drain
from millrace.event_store import NewEvent, on
from millrace.event_store.platform import PlatformStore
from millrace.spark import spark_session

PAUSE_S = 0.25
CHECK_EVERY_S = 0.005
PATIENCE_S = 60.0
WARM_UP = 10


@dataclass(frozen=True)
class Latency:
    """Sorted seconds from an append's commit to its row, and the CPU used meanwhile, in cores."""

    seconds: Sequence[float]
    cores: float
    cpu: Cpu

    def at(self, share: float) -> float:
        """Return the latency that this share of the appends did not exceed."""
        return self.seconds[min(int(len(self.seconds) * share), len(self.seconds) - 1)]


def of_views(bench: Bench, views: int, appends: int) -> Latency:
    """Append an order and some other events, wait for the order's row, and so on."""
    shop, dsn = Shop(), bench.store()
    append(dsn, shop.events(2000))
    # rounds may begin as often as possible
    declared = [replace(model, pooling_delay_s=0) for model in models(views)]
    stop = threading.Event()
    with (
        spark_session(ROUND_CONFIGURATION) as session,
        Drain(dsn, declared, lambda: session, "latency") as shared,
        ThreadPoolExecutor(1) as thread,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        # make the tables
        shared.run(budget_s=PATIENCE_S, idle_s=0)
        drain = thread.submit(shared.run, budget_s=3600, idle_s=3600, stop=stop)
        try:
            durations: list[float] = []
            before, began = bench.cpu(), time.monotonic()
            for number in range(WARM_UP + appends):
                if number == WARM_UP:
                    before, began = bench.cpu(), time.monotonic()
                durations.append(_one(connection, shop))
                if drain.done():
                    drain.result()
            cpu, seconds = bench.cpu().since(before), time.monotonic() - began
        finally:
            stop.set()
        drain.result()
    return Latency(sorted(durations[WARM_UP:]), cpu.all / seconds, cpu)


def _one(connection: psycopg.Connection, shop: Shop) -> float:
    order = f"late-{uuid4()}"
    placed = on("order", order, NewEvent("order_placed", {"customer_id": "c", "channel": "web"}))
    PlatformStore(connection).append_all([*shop.events(20), placed])
    committed = time.monotonic()
    while not connection.execute("select from read_models.orders where order_id = %s", (order,)).fetchall():
        if time.monotonic() - committed > PATIENCE_S:
            raise RuntimeError(f"{order} has no row after {PATIENCE_S:.0f} s")
        time.sleep(CHECK_EVERY_S)
    late = time.monotonic() - committed
    time.sleep(PAUSE_S)
    return late
