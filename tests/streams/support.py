"""A read model whose rows a test changes without Spark, and clients that keep its table."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any, cast

import httpx
import psycopg
import pyarrow as pa

from millrace import field, last, read_model, sum_
from millrace.drain.commit import transaction
from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.feed import tell_replaced
from millrace.read_models.stored.merge import merge_rows
from millrace.read_models.stored.tables import state_schema
from millrace.read_models.stored.versions import ensure_version
from millrace.streams.app import serving_streams
from millrace.streams.followers import Followers
from millrace.streams.tokens import TokenStore, hash_of, made_token
from tests.support.patience import patience

Message = dict[str, Any]


@read_model(view="by_day", deciders=["cart"], key=["day"], feed=True)
class ByDay:
    """One row per day, of all carts."""

    day = field("data.day")
    cents = sum_("data.cents")
    last = last("data.cents")


BY_DAY = cast("ReadModel", ByDay)


class Rows:
    """The rows of a read model, and its feed."""

    def __init__(self, connection: psycopg.Connection, number: int = 0) -> None:
        self.connection = connection
        self.store = PlatformStore(connection)
        self.number = number
        ensure_version(connection, BY_DAY)
        if not number:
            self.merge("sun")
            self.sequence()

    def merge(self, *days: str, partition: int = 0) -> None:
        """Add to the rows of some days, in one transaction, as a drain does."""
        with transaction(self.store, BY_DAY):
            for day in days:
                self.number += 1
                values = (partition, day, Decimal(self.number), str(self.number), self.number)
                kinds = (pa.int32(), pa.string(), pa.decimal128(38, 0), pa.string(), pa.int64())
                columns = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
                merge_rows(self.connection, BY_DAY, pa.table(columns, names=[*state_schema(BY_DAY)]))

    def replace(self) -> None:
        """Change all rows at once, as a rebuild does."""
        with transaction(self.store, BY_DAY):
            self.connection.execute("update read_models.by_day_state set last = 'replaced'")
            tell_replaced(self.connection, BY_DAY)

    def sequence(self) -> None:
        """Give all committed events their positions, and tell readers."""
        self.store.sequence_events()
        self.store.announce_positions([])

    def present(self) -> dict[str, str]:
        """Return the rows as JSON texts, by key."""
        return dict(self.connection.execute("select day, to_jsonb(r)::text from read_models.by_day r").fetchall())


@contextmanager
def client_of(followers: Followers) -> Iterator[httpx.Client]:
    """Yield a client of a server of its own."""
    with serving_streams(followers, "127.0.0.1", 0) as port, client_at(port, followers.dsn) as found:
        yield found


def client_at(port: int | str, dsn: str) -> httpx.Client:
    """Return a client of a server on this machine, with a token that reads all of a store."""
    return httpx.Client(
        base_url=f"http://127.0.0.1:{port}",
        timeout=patience(),
        limits=httpx.Limits(max_connections=None),
        headers={"Authorization": f"Bearer {token_of(dsn)}"},
    )


def token_of(dsn: str) -> str:
    """Return a new token of a login that reads a store."""
    token = made_token()
    with psycopg.connect(dsn, autocommit=True) as connection:
        with suppress(psycopg.errors.DuplicateObject):
            connection.execute("create role stream_reader login in role event_store_reader")
        connection.execute("grant usage on schema read_models to stream_reader")
        TokenStore(connection).add_stream_token(hash_of(token), "stream_reader", "a test")
    return token


class Table:
    """A client's copy of a read model: rows as texts, and the offset that it goes on from."""

    def __init__(self, client: httpx.Client, path: str = "/models/by_day") -> None:
        self.client, self.path = client, path
        self.rows = dict[str, str]()
        self.offset: str | None = None
        self.resets = 0

    def take(self, messages: list[Message]) -> None:
        """Apply messages in order."""
        for each in messages:
            headers = each["headers"]
            if headers.get("control") == "reset":
                self.rows.clear()
                self.resets += 1
            elif headers["operation"] == "delete":
                del self.rows[each["key"]]
            else:
                self.rows[each["key"]] = each["value"]

    def follow(self, enough: Callable[[], object]) -> None:
        """Read on as `EventSource` does, over new connections where one ends, until there is enough."""
        with suppress(httpx.TransportError):
            headers = {"Last-Event-ID": self.offset} if self.offset else {}
            url = f"{self.path}?offset=-1&live=sse"
            with self.client.stream("GET", url, headers=headers) as answer:
                assert answer.status_code == 200, answer.read()
                for kind, offset, data in parsed(answer.iter_lines()):
                    if kind == "data":
                        self.take(texts(data))
                    else:
                        self.offset = offset
                    if kind == "control" and enough():
                        return


def parsed(lines: Iterator[str]) -> Iterator[tuple[str, str, str]]:
    """Yield kind, id and data of server-sent events."""
    event = dict[str, str]()
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            event[name] = f"{event[name]}\n{value}" if name in event else value
        elif event:
            if "data" in event:
                yield event.get("event", ""), event.get("id", ""), event["data"]
            event = {}


def texts(array: str) -> list[Message]:
    """Return the messages of an array, the row of each as its text."""
    found = list[Message]()
    for line in array[1:-1].split(",\n"):
        if line:
            message = json.loads(line)
            if "value" in message:
                start = line.index('"value":') + len('"value":')
                message["value"] = line[start:-1]
            found.append(message)
    return found
