"""Declared events against a store: which it has, which it refuses, and which stored events their schemas refuse."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel

from millrace.errors import InvalidEvent, MillraceError, SchemaDiffers, UpcastDiffers
from millrace.event_schemas.fields import Schema
from millrace.event_schemas.model import DeclaredEvent, declared_event
from millrace.event_store import EventStore


class State(StrEnum):
    """The state of a declared event in a store."""

    REGISTERED = "registered"
    NEW = "new"
    DIFFERS = "differs"
    REFUSED = "refused"


@dataclass(frozen=True)
class StateInStore:
    """A declared event and its state in a store; `error` is its error if it is refused, or differs."""

    event: DeclaredEvent
    state: State
    error: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the store will never have the event as it is declared."""
        return self.state in {State.DIFFERS, State.REFUSED}


@dataclass(frozen=True)
class UnfitStream:
    """A stream with stored events that a schema refuses.

    Attributes:
        decider_id: The stream.
        events: The number of its refused events.
        version: The version of the stream at the first of these.
    """

    decider_id: str
    events: int
    version: int


@dataclass(frozen=True)
class UnfitHistory:
    """The stored events that a schema refuses: their number, the number of their streams, and the first streams."""

    events: int
    streams: int
    first: list[UnfitStream]


def register_events(store: EventStore, models: Iterable[type[BaseModel]]) -> None:
    """Register declared events with their schemas; registered events stay as they are.

    Raises:
        InvalidEvent: A model declares no event.
        SchemaDiffers: A version of an event has another schema. The models before it are registered.
        UpcastDiffers: A version of an event has another upcast.
        NotDeciderOwner: The login is no member of the role that owns the decider, or of the role that registered the
            event and therefore registers its schemas and upcasts.
        UpcastNeeded: A schema cannot read data of the version before, and no upcast leads there.
        Malformed: A schema has a keyword that the store does not take.
    """
    for model in models:
        declared = declared_event(model)
        if declared is None:
            raise InvalidEvent(f"{model.__name__} declares no event: write @event(decider=…) above it")
        _register(store, declared)


def require_as_declared(store: EventStore, models: Iterable[type[BaseModel]]) -> None:
    """Refuse declared events whose schema or upcast in the store is another one, or is refused; new ones pass.

    Raises:
        SchemaDiffers: An event is not in the store as it is declared.
    """
    declared = [event for event in map(declared_event, models) if event]
    if wrong := [each.error for each in states_in_store(store, declared, keep=False) if each.is_wrong]:
        raise SchemaDiffers("The store has events that differ from their declaration.", detail="\n".join(wrong))


def states_in_store(store: EventStore, events: Iterable[DeclaredEvent], *, keep: bool) -> list[StateInStore]:
    """Return the state of each declared event; with `keep` register the new ones, one by one, else register nothing.

    Without autocommit the caller's transaction decides whether kept registrations stay.
    """
    found = []
    for event in events:
        registered = store.connection.execute(
            """
            select from event_store.event_schemas s
            where (s.decider, s.event, s.event_version) = (%s, %s, %s) and %s::bigint[] <@ array(
              select u.to_version from event_store.event_upcasts u where u.decider = s.decider and u.event = s.event
            )
            """,
            (event.decider, event.event, event.version, [*event.upcasts]),
        ).fetchone()
        try:
            with store.connection.transaction(force_rollback=not keep):
                _register(store, event)
        except (SchemaDiffers, UpcastDiffers) as refusal:
            found.append(StateInStore(event, State.DIFFERS, str(refusal)))
        except MillraceError as refusal:
            found.append(StateInStore(event, State.REFUSED, str(refusal)))
        else:
            found.append(StateInStore(event, State.NEW if registered is None else State.REGISTERED))
    return found


def schemas_by_event(store: EventStore, events: Iterable[DeclaredEvent]) -> dict[tuple[str, str, int], Schema | None]:
    """Return the schema of each version of an event, registered or declared, by decider, event and version.

    None stands for an event without a schema. A declared schema takes precedence over the store's.
    """
    rows = store.connection.execute(
        """
        select d.decider, d.event, d.event_version, s.schema
        from event_store.deciders d
        left join event_store.event_schemas s using (decider, event, event_version)
        """
    ).fetchall()
    registered = {(decider, event, version): schema for decider, event, version, schema in rows}
    return registered | {(each.decider, each.event, each.version): each.schema for each in events}


def unfit_history(store: EventStore, event: DeclaredEvent) -> UnfitHistory:
    """Return the stored events of a declared event that its schema refuses; register nothing.

    Raises:
        SchemaDiffers: The store has another schema for it, so this one can never be set.
        Malformed: The schema has a keyword that the store does not take.
    """
    with store.connection.transaction(force_rollback=True):
        _register(store, event)
        found = store.connection.execute(
            """
            select e.decider_id, count(*), min(e.version), (sum(count(*)) over ())::bigint, count(*) over ()
            from event_store.events e
            join event_store.deciders d using (decider, event, event_version)
            where (e.decider, e.event, e.event_version) = (%s, %s, %s)
              and d.accepts is not null and (e.data @@ d.accepts) is not true
            group by e.decider_id
            order by e.decider_id
            limit 20
            """,
            (event.decider, event.event, event.version),
        ).fetchall()
    events, streams = found[0][3:] if found else (0, 0)
    return UnfitHistory(events, streams, [UnfitStream(*row[:3]) for row in found])


def _register(store: EventStore, event: DeclaredEvent) -> None:
    # the schema has no texts: a better docstring does not change it
    store.register_decider_event(event.decider, event.event, event.description, event.version, event.owner)
    # before the schema, which may need the upcasts
    for to_version, moves in event.upcasts.items():
        store.register_event_upcast(event.decider, event.event, to_version, moves)
    store.register_event_schema(event.decider, event.event, dict(event.schema), event.version)
