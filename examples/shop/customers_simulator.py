"""Simulates the clerks of the shop's customers: rows come, change and go, as in any application's table."""

import logging
import random
import threading

import psycopg
from tenacity import Retrying, before_sleep_log, retry_if_exception_type, sleep_using_event, stop_when_event_set
from tenacity.wait import wait_exponential

from millrace.examples.shop.customers import make_crm
from millrace.examples.shop.lives import NAMES

CITIES = ("Utrecht", "Ghent", "Bremen", "Lyon", "Porto", "Turku", "Graz")
MOST_CUSTOMERS = 500

logger = logging.getLogger(__name__)


def simulate_crm(
    dsn: str, *, rate: float | None, changes: int | None = None, seed: int | None = None, stop: threading.Event
) -> int:
    """Change customers until there were `changes` transactions or `stop` is set; return the number of transactions.

    Waits for a database that goes away; at the start it must answer.

    Args:
        dsn: The customer database.
        rate: Transactions per second, None for no limit.
        changes: How many transactions, None for no end.
        seed: Makes the changes repeatable on an empty table.
        stop: Ends it from another thread.

    Raises:
        Unreachable: The database does not answer at the start.
    """
    make_crm(dsn)
    chance = random.Random(seed)  # noqa: S311 - customers, not secrets
    transactions = 0
    patiently = Retrying(
        retry=retry_if_exception_type(psycopg.OperationalError),
        wait=wait_exponential(multiplier=0.2, max=5),
        stop=stop_when_event_set(stop),
        sleep=sleep_using_event(stop),
        before_sleep=before_sleep_log(logger, logging.WARNING),
        retry_error_callback=lambda _: None,
    )

    def change_until_done() -> None:
        nonlocal transactions
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set() and (changes is None or transactions < changes):
                with connection.transaction():
                    _change(connection, chance)
                transactions += 1
                if rate is not None:
                    stop.wait(1 / rate)

    patiently(change_until_done)
    return transactions


def _change(connection: psycopg.Connection, chance: random.Random) -> None:
    """Do one transaction of a clerk."""
    ids = [row[0] for row in connection.execute("select customer_id from customers order by customer_id")]
    kind = chance.random()
    name, city = chance.choice(NAMES), chance.choice(CITIES)
    if not ids or (kind < 0.3 and len(ids) < MOST_CUSTOMERS):
        connection.execute(
            "insert into customers (name, email, city) values (%s, %s, %s)",
            (name, f"{name.lower()}{chance.randrange(10_000)}@example.com", city),
        )
        return
    customer = chance.choice(ids)
    if kind < 0.8:
        connection.execute(
            "update customers set city = %s, updated_at = now() where customer_id = %s", (city, customer)
        )
    elif kind < 0.9:
        # a second change in one transaction: both are events
        connection.execute("update customers set email = null where customer_id = %s", (customer,))
        connection.execute(
            "update customers set newsletter = not newsletter, updated_at = now() where customer_id = %s", (customer,)
        )
    else:
        connection.execute("delete from customers where customer_id = %s", (customer,))
