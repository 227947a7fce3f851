"""Sessions at the store: texts and times in one form, for any settings of the login."""

import asyncio

import psycopg
import pytest

from millrace.errors import Malformed
from millrace.event_store import AsyncEventStore
from millrace.event_store.platform import PlatformStore
from millrace.postgres.connecting import connect
from tests.support.factories import append, refusal, register_orders, with_odd_settings
from tests.support.sql_calls import get_events


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_session_reads_texts_and_times_as_they_are(store: PlatformStore, dsn: str, autocommit: bool) -> None:
    register_orders(store)
    with connect(with_odd_settings(dsn), autocommit=autocommit) as opened:
        assert opened.autocommit == autocommit
        assert opened.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        found = append(PlatformStore(opened), "o-1", data={"text": "é\U0001f600"})
        assert found.data == {"text": "é\U0001f600"}
        opened.commit()
        assert [found.created_at] == [event.created_at for event in get_events(store, "o-1", "order")]


def test_on_a_callers_session_whose_times_cannot_be_read_nothing_is_done(store: PlatformStore, dsn: str) -> None:
    register_orders(store)
    with psycopg.connect(with_odd_settings(dsn), autocommit=True) as connection:
        refused = refusal(Malformed, lambda: append(PlatformStore(connection), "o-1"))
        assert "German" in str(refused.detail)
        assert get_events(store, "o-1", "order") == []
        connection.execute("set datestyle = 'ISO'")
        assert append(PlatformStore(connection), "o-1").offset >= 0

    async def append_nothing() -> None:
        async with await psycopg.AsyncConnection.connect(with_odd_settings(dsn), autocommit=True) as connection:
            await AsyncEventStore(connection).head("order", "o-1")

    refusal(Malformed, lambda: asyncio.run(append_nothing()))
