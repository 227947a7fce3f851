"""Appends of many coroutines, sent together: calls that arrive while a batch is in flight form the next batch."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from millrace.errors import Conflict, MillraceError
from millrace.event_store.async_client import UngatheredEventStore
from millrace.event_store.new_events import StreamEvents, batch_json
from millrace.event_store.rows import Appended
from millrace.event_store.waiting import require_idle

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

# limits of one batch
MOST_EVENTS, MOST_CHARACTERS = 500, 2**20


@dataclass(frozen=True)
class Call:
    """An append that a caller waits for."""

    stream: StreamEvents
    text: str
    answer: asyncio.Future[Appended]


class AsyncEventStore(UngatheredEventStore):
    """`EventStore` as coroutines, on a connection or a pool; concurrent appends are sent as one batch.

    On a connection in autocommit mode `append` is a transaction of its own. If a transaction is open, perhaps another
    coroutine's, `append` raises `TransactionOpen` and stores nothing; `append_all` and `handle` join it.

    An `append` that is cancelled before it is sent is not stored. Cancelled later it may be, as with a lost answer.
    """

    def __init__(self, connection: "psycopg.AsyncConnection | AsyncConnectionPool") -> None:
        super().__init__(connection)
        self._calls = deque[Call]()
        self._sender: asyncio.Task[None] | None = None

    async def _sent(self, stream: StreamEvents) -> Appended:
        if isinstance(self._source, psycopg.AsyncConnection) and not self._source.autocommit:
            return await self._appended(stream)
        call = Call(stream, batch_json([stream])[1:-1], asyncio.get_running_loop().create_future())
        self._calls.append(call)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return await call.answer

    async def _send(self) -> None:
        try:
            while self._calls:
                await self._answer(self._next())
        finally:
            self._sender = None
            for call in self._calls:  # this task was cancelled: its loop ends
                call.answer.cancel()

    def _next(self) -> list[Call]:
        """Take the calls of the next batch, in their order."""
        batch, events, characters = list[Call](), 0, 0
        while self._calls:
            call = self._calls[0]
            events, characters = events + len(call.stream.events), characters + len(call.text)
            if batch and (events > MOST_EVENTS or characters > MOST_CHARACTERS):
                break
            self._calls.popleft()
            if not call.answer.done():
                batch.append(call)
        return batch

    async def _answer(self, calls: Sequence[Call]) -> None:
        """Send calls, and answer each. If the store refuses a batch for one call, the other calls are sent again."""
        parts = [calls]
        try:
            while parts:
                # in their order: a caller's calls must stay one after another
                parts = [*await self._answered_or_split(parts[0]), *parts[1:]]
        except BaseException as error:  # this task was cancelled
            for part in parts:
                _raise_in(part, error)
            raise

    async def _answered_or_split(self, calls: Sequence[Call]) -> list[Sequence[Call]]:
        if not calls:
            return []
        try:
            if len(calls) == 1:
                answers = [await self._appended(calls[0].stream)]
            else:
                text = f"[{', '.join(call.text for call in calls)}]"
                answers = await self._appended_all([call.stream for call in calls], text)
        except MillraceError as refusal:
            at = 0 if len(calls) == 1 else _blamed(refusal, calls)
            if at is None:
                return [calls[: len(calls) // 2], calls[len(calls) // 2 :]]
            # the store checks for conflicts after all other faults, and counts the events of the calls before it
            if len(calls) == 1 or isinstance(refusal, Conflict):
                _raise_in(calls[at : at + 1], refusal)
                return [[*calls[:at], *calls[at + 1 :]]]
            return [calls[:at], calls[at : at + 1], calls[at + 1 :]]
        except Exception as error:  # noqa: BLE001 - each caller is told
            _raise_in(calls, error)
        else:
            for call, answer in zip(calls, answers, strict=True):
                if not call.answer.done():
                    call.answer.set_result(answer)
        return []

    async def _execute(
        self, cursor: psycopg.AsyncCursor[Any], query: bytes, parameters: Sequence[object], prepare: bool | None
    ) -> None:
        # a connection that a pool lends is this call's alone
        if asyncio.current_task() is not self._sender or cursor.connection is not self._source:
            await super()._execute(cursor, query, parameters, prepare)
            return
        # like `cursor.execute`, but no other task gets in between the check and the statement
        async with cursor.connection.lock:
            require_idle(cursor.connection, "append is a transaction of its own, and would be a part of the open one.")
            await cursor.connection.wait(cursor._execute_gen(query, parameters, prepare=prepare))


def _raise_in(calls: Sequence[Call], error: BaseException) -> None:
    for call in calls:
        if call.answer.done():
            continue
        if isinstance(error, Exception):
            call.answer.set_exception(error)
        else:
            call.answer.cancel()


def _blamed(refusal: MillraceError, calls: Sequence[Call]) -> int | None:
    """Return the place of the call with the event that a refusal names; None where it names none."""
    cause = refusal.__cause__
    named = cause.diag.column_name if isinstance(cause, psycopg.Error) else None
    for place, call in enumerate(calls):
        if named in {str(event.event_id) for event in call.stream.events}:
            return place
    return None
