"""Subscriptions in tests: given events, when they are handled, then this effect."""

import psycopg
import pytest

from millrace import Delivery, subscription
from millrace.errors import TryLater
from millrace.testing import StreamsFailed, event, given

PAID = (event("order", "o-1", "placed"), event("order", "o-1", "paid", by="card"))


def test_each_event_is_handled_once_and_later_ones_by_the_next_call(dsn: str) -> None:
    seen: list[tuple[str, int]] = []

    @subscription(view="seen", events=["placed", "paid"])
    def see(happened: Delivery) -> None:
        seen.append((happened.decider_id, happened.version))

    shop = given(*PAID, event("order", "o-1", "shipped"), dsn=dsn)
    assert shop.when(see).handled == 2
    assert seen == [("o-1", 1), ("o-1", 2)]
    assert shop.given(event("order", "o-2", "placed")).when(see).handled == 1
    assert seen[2:] == [("o-2", 1)]


def test_what_a_handler_raises_fails_the_test_and_names_the_stream(dsn: str) -> None:
    @subscription(view="picky", max_attempts=100)
    def refuse(happened: Delivery, _: psycopg.Connection) -> None:
        if happened.decider_id == "o-1":
            raise ValueError(f"no {happened.data['by']}" if happened.data else "no data")

    shop = given(*PAID, event("order", "o-2", "placed"), dsn=dsn)
    said = r"(?s)refuse failed at 1 stream.*order 'o-1', offset 1: ValueError: no data"
    with pytest.raises(StreamsFailed, match=said):
        shop.when(refuse)


def test_what_a_handler_wants_later_is_no_failure(dsn: str) -> None:
    @subscription(view="late")
    async def wait(happened: Delivery) -> None:
        if happened.event == "paid":
            raise TryLater("the bank is closed", after_s=3600)

    counters = given(*PAID, dsn=dsn).when(wait)
    assert (counters.handled, counters.given_back, counters.failed) == (1, 1, 0)
