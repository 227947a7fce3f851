"""Personal values: sealed before they leave the process, in events and in texts, and opened after they come back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from millrace.errors import InvalidSetting, KeyGone, UnreadableData
from millrace.event_store.new_events import StreamEvents
from millrace.event_store.rows import Event
from millrace.event_store.sql_functions import SqlFunctions
from millrace.personal.marked_text import people_of
from millrace.personal.values import SEALED, Key, StoredKey

Read = TypeVar("Read", bound=Event)
Text = TypeVar("Text", str, str | None)
# asked for, since a refusal would abort the caller's transaction
MAY_OPEN = """
    select case when has_schema_privilege('event_store', 'usage')
      then has_function_privilege('event_store.open_keys(text[])', 'execute') else false end
"""


def readable(events: Iterable[Read]) -> list[Read]:
    """Return the events with data that this program can read."""
    found = list[Read]()
    for event in events:
        with suppress(UnreadableData):
            found += [event] if event.data is not None else []
    return found


def with_sealed(streams: Iterable[StreamEvents], seal: Callable[[Any, UUID], Any]) -> list[StreamEvents]:
    """Return events with their data sealed by a function of the data and the event's id."""
    return [
        replace(each, events=tuple([replace(event, data=seal(event.data, event.event_id)) for event in each.events]))
        for each in streams
    ]


class Sealing(SqlFunctions):
    """The part of `EventStore` that seals and opens personal values, where it has a sealer."""

    def open_rows(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return rows, such as those of a read model, with their sealed values opened.

        A value that is forgotten is `Forgotten`, and one that this sealer cannot open `Sealed`. Values that are text of
        JSON stay as they are.
        """
        given = [dict(row) for row in rows]
        if self.sealer is None:
            return given
        keys = self._opening_keys(given)
        return [self.sealer.opened(row, keys) for row in given]

    def _opened(self, events: list[Read]) -> list[Read]:
        """Let the data of events have the values themselves; their JSON texts stay as they are stored."""
        if self.sealer is not None:
            sealed = readable(event for event in events if f'"{SEALED}"' in event.data_json)
            keys = self._opening_keys([event.data for event in sealed])
            for event in sealed:
                event.__dict__["data"] = self.sealer.opened(event.data, keys)
        return events

    def _opening_keys(self, data: Sequence[Any]) -> Mapping[str, Key]:
        """Return the keys that open data, by their names; without the right, those that are kept."""
        assert self.sealer is not None
        keys = self.sealer.kept_by_name()
        names = [name for name in self.sealer.key_names_in(data) if name not in keys]
        if not names or not self._value(bool, MAY_OPEN):
            return keys
        # a transaction that only reads must not write: it would hold up the log
        reads = isinstance(self._source, psycopg.Connection) and not self._source.autocommit
        if not reads and self._status in {None, psycopg.pq.TransactionStatus.IDLE}:
            self._note_holder()
        for _ in range(2):  # a rotation may have destroyed a file since
            if self.sealer.learn(keys, self._all(StoredKey, "select * from event_store.open_keys(%s)", (names,))):
                break
        return keys

    def _note_holder(self) -> None:
        if self.sealer and (holder := self.sealer.to_note()):
            self._value(str, "select event_store.note_holder(%s, %s, %s)", holder)

    def _sealed(self, streams: Sequence[StreamEvents]) -> list[StreamEvents]:
        """Return events with their personal values sealed; a person without a key gets one."""
        if self.sealer is None:
            return [*streams]
        keys = dict[str, Key]()
        for decider in dict.fromkeys(stream.decider for stream in streams):
            data = [event.data for stream in streams if stream.decider == decider for event in stream.events]
            people = self.sealer.people_in(data)
            keys |= self.sealer.kept(people)
            if asked := [each for each in people if each not in keys]:
                keys |= self._asked_keys(decider, asked)
        return with_sealed(streams, partial(self.sealer.sealed, keys=keys)) if keys else [*streams]

    def _asked_keys(self, decider: str, people: Sequence[str]) -> dict[str, Key]:
        assert self.sealer is not None
        call = "select * from event_store.subject_keys(%s, %s, %s, %b::bytea[], %b::text[], %b::bytea[])"
        proposed = self.sealer.proposed(people)
        self._note_holder()
        try:
            rows = self._all(StoredKey, call, (decider, *proposed))
        except KeyGone as error:
            raise self.sealer.refused(proposed[0], error) from error
        return self.sealer.learnt(people, rows)

    def _sealed_anew(self, streams: Sequence[StreamEvents]) -> list[StreamEvents]:
        """Within the handling of `KeyGone`: seal again with keys as they are now; raise it again in a transaction."""
        if self.sealer is not None:
            self.sealer.drop_keys()
        if self.sealer is None or self._status == psycopg.pq.TransactionStatus.INERROR:
            raise  # noqa: PLE0704 - the error that is handled
        return self._sealed(streams)


class TextSealing(Sealing):
    """The part of a store that seals marked values of JSON texts (`personal.marked_text`), for captures and imports."""

    def seal_texts(self, decider: str, texts: Sequence[Text], places: Iterable[bytes]) -> list[Text]:
        """Return texts with their marked values sealed, with the keys that people have now.

        Text of the same place is sealed the same way each time, until its person is forgotten.

        Raises:
            InvalidSetting: There is no sealer.
            KeyGone: The folder of keys is of another store, or of an earlier epoch.
        """
        people = people_of(filter(None, texts))
        if not people:
            return list(texts)
        if self.sealer is None:
            raise InvalidSetting(
                "Personal values are sealed with the keys of a folder.", hint="Name it in MILLRACE_KEYS."
            )
        kept = {each: key for each, key in self.sealer.kept(people).items() if key.cipher}
        # no event is judged by a schema here: ask whether a key was destroyed since it is kept
        living = "select count(*) from event_store.open_keys(%b::text[]) where wrapped is not null"
        if kept and self._value(int, living, ([key.key_id for key in kept.values()],)) < len(kept):
            kept = {}
        if asked := [each for each in people if each not in kept]:
            kept |= self._asked_twice(decider, asked)
        return [text and self.sealer.sealed_text(text, place, kept) for text, place in zip(texts, places, strict=True)]

    def require_keys(self, decider: str) -> None:
        """Refuse to begin where values of a decider cannot be sealed; raises as `seal_texts`."""
        self._asked_twice(decider, ())

    def _asked_twice(self, decider: str, people: Sequence[str]) -> dict[str, Key]:
        try:
            return self._asked_keys(decider, people)
        except KeyGone:
            # while it is rotated: the sealer took the folder's other file
            return self._asked_keys(decider, people)
