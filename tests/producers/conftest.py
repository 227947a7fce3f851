"""Producers of a store of orders."""

from collections.abc import Iterator

import pytest

from millrace.event_store.platform import PlatformStore
from millrace.producers.exactly_once import ExactlyOnce
from tests.support.factories import register_orders
from tests.support.producing.counting import Counting


@pytest.fixture
def once(dsn: str, store: PlatformStore) -> Iterator[ExactlyOnce]:
    register_orders(store)
    with ExactlyOnce(dsn) as exactly_once:
        yield exactly_once


@pytest.fixture
def other(dsn: str) -> Iterator[ExactlyOnce]:
    with ExactlyOnce(dsn) as exactly_once:
        yield exactly_once


@pytest.fixture
def work() -> Counting:
    return Counting()
