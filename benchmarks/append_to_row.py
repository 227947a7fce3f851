"""Measures the way of one event: from the commit of its append to its row in `read_models.orders`.

Belongs here: one number and its spread, against a running `millrace up`. Not here: starting servers, or throughput.

Orders are placed one after the other at random moments, so that they do not fall into step with the drain's polls.
Everything is warm: the benchmark waits for a live drain of the view `orders`, and does not count the first few orders.
It looks for a row every two milliseconds; the numbers are as exact as that.

    python -m benchmarks.append_to_row [--appends 100] [--seed 1] [--dsn postgresql://…]
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from uuid import UUID, uuid4

import psycopg

from millrace.examples.shop.events import register_shop
from millrace.resources.errors import MillraceError
from millrace.resources.event_store import EventStore
from millrace.resources.postgres.dsn import current_dsn
from millrace.resources.settings import Settings

VIEW = "orders"
WARM_UP = 5
LOOK_S = 0.002
DRAIN_PATIENCE_S = 120.0
ROW_PATIENCE_S = 60.0
# Between two appends, in seconds: more than one polling delay, so that each append meets an idle drain at a random
# point of the drain's wait.
PAUSE_S = (0.5, 2.5)
BAR = 40


class CannotMeasure(MillraceError):
    """Something that the measurement needs is not there."""


def main() -> None:
    """Measure and print; exit code 1 and one sentence if it cannot."""
    parser = argparse.ArgumentParser(description="Time from append to row, in seconds, on a running Millrace.")
    parser.add_argument("--appends", type=int, default=100, help="how many orders to place (100)")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments (1)")
    parser.add_argument("--dsn", help="the event store; by default MILLRACE_DSN, or the running `millrace up`")
    arguments = parser.parse_args()
    if arguments.appends < 1:
        parser.error("--appends must be at least 1")
    try:
        dsn = arguments.dsn or current_dsn(Settings())
        with psycopg.connect(dsn, autocommit=True) as connection:
            wait_for_drain(connection)
            seconds = measure(connection, arguments.appends, random.Random(arguments.seed))
            delay = polling_delay(connection)
    except MillraceError as error:
        sys.exit(f"{error.message.rstrip('.')}: {error.hint}" if error.hint else error.message)
    except psycopg.OperationalError as error:
        sys.exit(f"Postgres does not answer: {' '.join(str(error).split())}")
    print(f"from append to row in read_models.{VIEW}, pooling_delay_s = {delay}, everything warm")
    print(report(seconds))


def wait_for_drain(connection: psycopg.Connection) -> None:
    """Wait until a drain of the view is in flight: until it has a live consumer.

    Raises:
        CannotMeasure: None was, for two minutes, or the database has no event store.
    """
    store = EventStore(connection)
    deadline = time.monotonic() + DRAIN_PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if any(row.consumers for row in store.poll_views([VIEW])):
                return
        except psycopg.errors.UndefinedFunction as error:
            raise CannotMeasure("The database has no event store.", hint="Run: millrace migrate") from error
        time.sleep(0.2)
    raise CannotMeasure(
        f"No drain of {VIEW} was in flight for {DRAIN_PATIENCE_S:.0f} s.", hint="Is `make run` running?"
    )


def polling_delay(connection: psycopg.Connection) -> int | None:
    """Return the view's pooling_delay_s, in seconds, or None if the view is not registered."""
    return next((row.pooling_delay_s for row in EventStore(connection).poll_views([VIEW])), None)


def measure(connection: psycopg.Connection, appends: int, dice: random.Random) -> list[float]:
    """Place orders and return for each how many seconds its row took, those of the warm-up left out."""
    store = EventStore(connection)
    register_shop(store)
    seconds = []
    for number in range(WARM_UP + appends):
        time.sleep(dice.uniform(*PAUSE_S))
        order = f"order-timed-{uuid4()}"
        place(store, order, uuid4())
        committed = time.perf_counter()
        wait_for_row(connection, order, committed)
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - committed)
    return seconds


def place(store: EventStore, order: str, event_id: UUID) -> None:
    """Append the first event of an order; the connection commits it."""
    data = {"customer_id": "customer-timed", "channel": "web"}
    store.append_event("order_placed", event_id, "order", order, data, event_id, None)


def wait_for_row(connection: psycopg.Connection, order: str, committed: float) -> None:
    """Look for the order's row until it is there.

    Raises:
        CannotMeasure: It did not come.
    """
    while connection.execute("select from read_models.orders where order_id = %s", (order,)).fetchone() is None:
        if time.perf_counter() - committed > ROW_PATIENCE_S:
            raise CannotMeasure(
                f"The row of {order} did not come in {ROW_PATIENCE_S:.0f} s.",
                hint="Look at the drain of orders in Dagster.",
            )
        time.sleep(LOOK_S)


def report(seconds: Sequence[float]) -> str:
    """Count, extremes, percentiles and a histogram as text."""
    ordered = sorted(seconds)
    figures = {
        "count": f"{len(ordered)}",
        "min": f"{ordered[0]:.3f} s",
        **{f"p{percent}": f"{percentile(ordered, percent):.3f} s" for percent in (50, 90, 99)},
        "max": f"{ordered[-1]:.3f} s",
    }
    return "\n".join([*(f"{name:>5}  {figure}" for name, figure in figures.items()), "", *histogram(ordered)])


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least so many percent of the values do not exceed (nearest rank)."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def histogram(ordered: Sequence[float], bins: int = 10) -> list[str]:
    """Lines of equal width in seconds from the smallest to the largest value, each with a bar and a count."""
    low, width = ordered[0], (ordered[-1] - ordered[0]) / bins or 1.0
    counts = [0] * bins
    for value in ordered:
        counts[min(bins - 1, int((value - low) / width))] += 1
    return [
        f"{low + n * width:7.3f} s  {'#' * round(BAR * count / max(counts)):<{BAR}}  {count}"
        for n, count in enumerate(counts)
    ]


if __name__ == "__main__":
    main()
