"""Declarations of subscriptions: an unworkable one is refused before anything runs."""

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial

import psycopg
import pytest

from millrace.errors import InvalidSubscription
from millrace.event_store import Delivery
from millrace.handlers.consumer import consume
from millrace.handlers.declaration import Subscription
from tests.handlers.test_consume import handled_by, ignore


def test_what_cannot_work_is_refused_when_it_is_declared() -> None:
    for settings, said in (
        ({"view": ""}, "names no view"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 257}, "concurrency"),
        ({"events": "placed"}, "lists"),
        ({"deciders": "order"}, "lists"),
        ({"lock_timeout_s": 0}, "lock_timeout_s"),
        ({"lock_timeout_s": 3601}, "lock_timeout_s"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"start": "yesterday"}, "start is a time such as 2024-02-29"),
        ({"version": -1}, "version"),
        ({"max_attempts": 0}, "max_attempts"),
    ):
        with pytest.raises(InvalidSubscription, match=said):
            handled_by(ignore, **settings)

    async def both(event: Delivery, connection: psycopg.Connection) -> None: ...

    for handler in (lambda: None, lambda a, b, c: (a, b, c), both):
        with pytest.raises(InvalidSubscription, match="event"):
            handled_by(handler)

    def yields(event: Delivery) -> Iterator[Delivery]:
        yield event

    async def yields_later(event: Delivery) -> AsyncIterator[Delivery]:
        yield event

    class Yields:
        def __call__(self, event: Delivery) -> Iterator[Delivery]:
            yield event

    for generator in (yields, yields_later, partial(yields), Yields(), partial(Yields()), Yields().__call__):
        with pytest.raises(InvalidSubscription, match="generator"):
            handled_by(generator)
    assert not handled_by(lambda event, more=1: (event, more)).takes_connection


def test_a_subscription_is_called_as_its_function_and_each_view_has_one() -> None:
    assert handled_by(lambda event: [event])("e") == ["e"]

    class Later:
        async def __call__(self, event: Delivery) -> None: ...

    assert handled_by(Later()).is_async
    wrong: Sequence[Sequence[Subscription]] = ([], [handled_by(ignore), handled_by(ignore)])
    for each in wrong:
        with pytest.raises(InvalidSubscription):
            consume("host=/nowhere", each, stop=threading.Event())
