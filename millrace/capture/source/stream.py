"""The changes of a replication slot, as they come, by the replication protocol.

The server sends each transaction as a whole after its commit, and in between the position that it has reached. We
report up to where all is stored, and nothing else moves the slot.
"""

import selectors
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import inf
from struct import Struct
from types import TracebackType
from typing import Self

import psycopg
from psycopg import pq, sql
from psycopg.errors import (
    CharacterNotInRepertoire,
    Diagnostic,
    ObjectNotInPrerequisiteState,
    UntranslatableCharacter,
    error_from_result,
)
from psycopg.generators import execute

from millrace.capture.decoding.encodings import codec_of, recoded_message
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.source.connection import ANSWER_S, WALSENDER_HINT, connect_walsender, set_up_walsender
from millrace.capture.source.slot import no_publication, patiently, reader_name, why_refused
from millrace.errors import MillraceError, Unreachable
from millrace.patience import FAREWELL_S, LONG_S, LOOK_S, PATIENCE_S, POLL_S

# How often we send a sign of life and ask the server for one: also during a long store
_SIGN_S = PATIENCE_S / 6

_WAL, _KEEPALIVE = b"wk"
_BEGIN, _COMMIT = b"BC"
_POSITION = Struct(">Q")
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
# written, flushed, applied, the time, whether to answer
_STATUS = Struct(">cQQQqB")


class NoStream(Unreachable):
    """A replication connection to the source cannot be had."""


class NotText(MillraceError):
    """A value is not text in the source's encoding, so the server cannot convert it."""


class Stopped(MillraceError):
    """The caller must stop, and the transaction that is arriving has not ended."""


class SlotStream:
    """The changes of a slot, over its own connection; a context manager.

    A thread gives signs of life, so that the server waits while the caller works. After an error the stream is useless:
    a new one repeats everything that the slot was not advanced past.

    Args:
        source: A connection to the source.
        slot: The slot's name.
        publication: The publication's name.
        converted: Whether the server converts text to UTF-8. Otherwise this process does, value by value:
            `recoded_message` marks values that are not text.
        takes_over: Whether to end a former process that reads the slot: the caller has the capture's lease.
        stop: Once set, ends calls that get no answer.

    Attributes:
        passed_lsn: Everything committed below this position has been given.

    Raises:
        SlotBusy: Another session reads the slot for longer than a few seconds.
        SlotLost: The slot is gone, or is no longer good.
        PublicationMissing: The publication does not exist.
        NoStream: A replication connection cannot be had.
    """

    def __init__(
        self,
        source: psycopg.Connection,
        slot: str,
        publication: str,
        *,
        converted: bool = True,
        takes_over: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self.passed_lsn = Lsn(0)
        self._source, self._slot, self._publication = source, slot, publication
        self._codec = None if converted else codec_of(str(source.info.parameter_status("server_encoding")))
        # up to where we have stored its changes
        self._stored_lsn = Lsn(0)
        # a message that came during a wait
        self._next: bytes | None = None
        self._within_transaction = False
        self._works, self._last_message_at, self._silent_until = True, 0.0, 0.0
        self._note_message()
        self._warning: str | None = None
        self._closed = threading.Event()
        # guards libpq's connection, which two threads use
        self._lock = threading.Lock()
        if source.execute("select from pg_publication where pubname = %s", (publication,)).fetchone() is None:
            raise no_publication(publication, f"database {source.info.dbname} has none of this name")
        encoding, name = "utf8" if converted else "sql_ascii", reader_name(slot) if takes_over else "millrace"
        try:
            self._connection = connect_walsender(source, stop, client_encoding=encoding, application_name=name)
        except psycopg.OperationalError as error:
            raise NoStream(
                "The source gives no replication connection.", detail=str(error).strip(), hint=WALSENDER_HINT
            ) from error
        self._pgconn = self._connection.pgconn
        self._connection.add_notice_handler(self._warned)
        self._selector = selectors.DefaultSelector()
        try:
            set_up_walsender(self._connection)
            self._selector.register(self._pgconn.socket, selectors.EVENT_READ)
            patiently(source, slot, self._start, takes_over=takes_over)
        except BaseException as error:
            self.close()
            if isinstance(error, psycopg.Error):
                raise why_refused(source, slot, publication, error) from error
            raise
        self._status_thread = threading.Thread(target=self._send_statuses, name=f"status of {slot}", daemon=True)
        self._status_thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.end()
        self.close()

    @property
    def converted(self) -> bool:
        """Whether the server converts text."""
        return self._codec is None

    def messages(self, until: Lsn, stop: threading.Event) -> Iterator[bytes]:
        """Give the messages of whole transactions that are there now, or that come until a position is passed.

        It ends between two transactions: when no more are there after some were given, or when all before the position
        were given; and soon after `stop` is set.

        Raises:
            NotText: A value is not text in its encoding; open a stream that is not converted.
            Stopped: It must stop, and a transaction lasts longer than a moment.
            SlotLost: The slot is gone, or is no longer good.
            PublicationMissing: The publication does not exist, or did not exist when some of the changes were made.
            psycopg.OperationalError: The server has ended the stream, or is silent.
        """
        yielded = False
        stop_at, ask_at = inf, time.monotonic() + LOOK_S
        while True:
            # all received messages, before checking anything else
            while (message := self._take()) is not None:
                yielded = True
                yield message
            if stop.is_set():
                stop_at = min(stop_at, time.monotonic() + FAREWELL_S)
                if not self._within_transaction:
                    return
                if time.monotonic() >= stop_at:
                    raise Stopped("A transaction of the source was left before its end.")
            self._next = self.read()
            if self._next is not None:
                continue
            if not self._within_transaction and (yielded or self.passed_lsn >= until):
                return
            if time.monotonic() >= ask_at:
                # while others write without a pause, the server does not report its position by itself
                self._send_status(answer=True)
                ask_at = time.monotonic() + LOOK_S
            self._next = self.read(POLL_S)

    def wait(self, timeout_s: float) -> None:
        """Wait until a message comes."""
        until = time.monotonic() + timeout_s
        while self._next is None and (left := until - time.monotonic()) > 0:
            self._next = self.read(left)

    def read(self, timeout_s: float = 0.0) -> bytes | None:
        """Return the next message; None if none comes in time, or if another kind of message comes.

        Raises:
            As `messages`.
        """
        message = self._take()
        if message is None:
            if timeout_s > 0:
                self._selector.select(timeout_s)
            try:
                with self._lock:
                    self._pgconn.consume_input()
            except psycopg.Error as error:
                raise self._why(error) from error
            message = self._take()
        if message is None and time.monotonic() > self._silent_until:
            if not self._works or time.monotonic() - self._last_message_at > LONG_S:
                self._connection.give_up()
            # it may decode silently for long; a message that arrived during this check is read by the next call
            self._works = self._connection.works()
            self._silent_until = time.monotonic() + (ANSWER_S if self._works else 0)
        return message

    def advance(self, lsn: Lsn) -> None:
        """Let the source discard what committed before a position that was passed, because it is stored.

        A source that crashes may repeat what was discarded shortly before.
        """
        self._stored_lsn = lsn
        self._send_status()

    def end(self) -> None:
        """End the stream, and wait a moment until the slot is free."""
        until = time.monotonic() + FAREWELL_S
        with suppress(psycopg.Error), self._lock:
            self._pgconn.put_copy_end()
            ended = False
            while time.monotonic() < until:
                self._pgconn.flush()
                # messages that come until then are dropped: the slot repeats them
                while not ended and (size := self._pgconn.get_copy_data(1)[0]):
                    ended = size < 0
                if ended and not self._pgconn.is_busy():
                    return
                self._selector.select(POLL_S)
                self._pgconn.consume_input()

    def close(self) -> None:
        """Close the connection."""
        self._closed.set()
        with self._lock:
            self._selector.close()
            self._connection.close()

    def _take(self) -> bytes | None:
        """Return the next received message; None if there is none."""
        if self._next is not None:
            message, self._next = self._next, None
            return message
        while True:
            with self._lock:
                size, data = self._pgconn.get_copy_data(1)
            if size == 0:
                return None
            if self._warning is not None:
                raise no_publication(self._publication, self._warning)
            if size < 0:
                raise self._why(self._error())
            self._note_message()
            kind = data[0]
            if kind == _WAL:
                # the message follows its start, the end of the log, and the time
                message = bytes(data[25:])
                kind = message[0]
                if kind == _BEGIN:
                    self._within_transaction = True
                elif kind == _COMMIT:
                    self._within_transaction = False
                    self._passed(_POSITION.unpack_from(message, 10)[0])
                return message if self._codec is None else recoded_message(message, self._codec)
            if kind == _KEEPALIVE:
                # commits below it were sent before it; within a transaction it is below that transaction's commit
                self._passed(_POSITION.unpack_from(data, 1)[0])

    def _note_message(self) -> None:
        self._works = True
        self._last_message_at = time.monotonic()
        self._silent_until = self._last_message_at + ANSWER_S

    def _passed(self, lsn: int) -> None:
        # at first the server reads its log from further back
        self.passed_lsn = max(self.passed_lsn, Lsn(lsn))

    def _start(self) -> None:
        publications = '"' + self._publication.replace('"', '""') + '"'
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {}, messages 'true')"
        ).format(sql.Identifier(self._slot), sql.Literal(publications))
        self._pgconn.send_query(command.as_bytes(self._connection))
        (result, *_) = self._connection.wait(execute(self._pgconn))
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise error_from_result(result)

    def _error(self) -> psycopg.Error:
        result = self._pgconn.get_result()
        if result is None or result.status == pq.ExecStatus.COMMAND_OK:
            return psycopg.OperationalError("the source ended the stream")
        return error_from_result(result)

    def _why(self, error: psycopg.Error) -> Exception:
        if isinstance(error, CharacterNotInRepertoire | UntranslatableCharacter):
            return NotText("A value is no text of the source's encoding.", detail=str(error))
        return why_refused(self._source, self._slot, self._publication, error)

    def _warned(self, diagnostic: Diagnostic) -> None:
        # PostgreSQL 18 and later warns of a missing publication and leaves its changes out; earlier ones refuse. The
        # warning of a wait for a standby (synchronized_standby_slots) has the same code.
        message = str(diagnostic.message_primary)
        if diagnostic.sqlstate == ObjectNotInPrerequisiteState.sqlstate and self._publication in message:
            self._warning = message

    def _send_statuses(self) -> None:
        while not self._closed.wait(_SIGN_S):
            # the reader meets any error of the connection
            with suppress(psycopg.Error):
                self._send_status(answer=True)

    def _send_status(self, *, answer: bool = False) -> None:
        """Report our position to the server; ask it to answer, so that a silent server is noticed."""
        stored = self._stored_lsn
        now = (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1)
        with self._lock:
            if not self._closed.is_set():
                self._pgconn.put_copy_data(_STATUS.pack(b"r", self.passed_lsn, stored, stored, now, answer))
                self._pgconn.flush()
