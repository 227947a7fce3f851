"""Processes: what happens step by step over several streams, as a class whose methods hear events.

    @process(view="checkout", key={"order": "decider_id", "payment": "data.order_id"})
    class Checkout:
        payment_id: str | None = None

        @starts("order_placed")
        def placed(self, event, do):
            do.timer("pay", after=timedelta(days=3), event="payment_overdue")

        @on("payment_taken")
        def paid(self, event, do):
            self.payment_id = event.data["payment_id"]
            do.cancel("pay")
            do.command(SHIPPING, event.data["order_id"], Ship())
            do.end()

A process is a subscription. Each event that an instance hears is one step, in one transaction: an event `step` in the
stream (`process:<view>`, key) with the state after it, what the method asked for, and the acknowledgement. So an event
that comes again does nothing, and an instance's history is a stream like any other.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from msgspec import structs
from psycopg.errors import SerializationFailure
from pydantic import BaseModel, ValidationError

from millrace.commands.decider import Decider
from millrace.commands.handle import handle
from millrace.errors import Conflict, GaveUp, InvalidSubscription, TryLater
from millrace.event_store import Delivery, Event, EventStore, NewEvent
from millrace.event_store.ids import id_of
from millrace.handlers.declaration import Refused, Subscription
from millrace.patience import PAUSE_S

Class = TypeVar("Class")
Method = Callable[..., None]

STEP = "step"
# a command that is refused leads to a step, whose commands may be refused in turn
DEEPEST = 10
# where the last step stands nearly always: before it are timers that fired since
NEWEST = 20


def starts(event: str) -> Callable[[Method], Method]:
    """Let a method hear an event that begins an instance; one that lives hears it, too."""
    return _hears("starts", event)


def on(event: str, *, wait: timedelta = timedelta(0)) -> Callable[[Method], Method]:
    """Let a method hear an event of an instance that lives.

    There is no order between streams: an event may come before the one that begins the instance. It waits for so long
    after it was appended, and its stream with it; then it is passed over.
    """
    return _hears("on", event, wait)


def on_late(event: str) -> Callable[[Method], Method]:
    """Let a method hear an event that comes after the instance has ended."""
    return _hears("late", event)


def on_refused(command: type) -> Callable[[Method], Method]:
    """Let a method hear that a command of this class was refused: it takes a `RefusedCommand`."""
    return _hears("refused", command)


@dataclass(frozen=True)
class RefusedCommand:
    """A command that its decider refused with an error."""

    decider_id: str
    command: Any
    error: Exception


@dataclass(frozen=True)
class Timer:
    """An event that the instance will hear later, unless it is cancelled or the name is used again."""

    name: str
    after: timedelta
    event: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cancel:
    """A timer that is taken back."""

    name: str


@dataclass(frozen=True)
class Command:
    """A command for a stream."""

    decider: Decider[Any, Any]
    decider_id: str
    command: Any


@dataclass
class Do:
    """What a method asks for; it is done after the method returned, in this order, in the step's transaction."""

    asked: list[Timer | Cancel | Command] = field(default_factory=list)
    ended: bool = False

    def timer(self, name: str, *, after: timedelta, event: str, data: Mapping[str, Any] | None = None) -> None:
        """Let the instance hear an event after a time; a timer of the same name is moved."""
        self.asked.append(Timer(name, after, event, data or {}))

    def cancel(self, name: str) -> None:
        """Take a timer back; it may have fired."""
        self.asked.append(Cancel(name))

    def command(self, decider: Decider[Any, Any], decider_id: str, command: Any) -> None:  # noqa: ANN401 - a user's
        """Handle a command, once however often the step is tried."""
        self.asked.append(Command(decider, str(decider_id), command))

    def end(self) -> None:
        """End the instance: it hears no further event, except by `on_late`."""
        self.ended = True


@dataclass(frozen=True)
class Instance:
    """An instance as its last step left it; `state` is None before its first one."""

    state: dict[str, Any] | None = None
    ended: bool = False


@dataclass(frozen=True, kw_only=True)
class Process(Subscription):
    """A process, as `process` makes it from a class."""

    model: type[BaseModel]
    key: Mapping[str, str]
    methods: Mapping[tuple[str, str | type], str]
    waits: Mapping[str, timedelta]

    @property
    def decider(self) -> str:
        """The decider of its steps and timers."""
        return f"process:{self.view}"

    def hears(self) -> dict[str, list[str]]:
        """Return the events, or refused commands, that each method hears."""
        found: dict[str, list[str]] = {}
        for (_, what), method in self.methods.items():
            found.setdefault(method, []).append(what if isinstance(what, str) else f"refused {what.__name__}")
        return found

    def targets(self) -> list[str]:
        """Return the deciders that the methods name, for their commands."""
        names = (inspect.getclosurevars(getattr(self.model, method)) for method in set(self.methods.values()))
        found = (each for used in names for each in (*used.nonlocals.values(), *used.globals.values()))
        return sorted({each.name for each in found if isinstance(each, Decider)})

    def prepare(self, store: EventStore) -> None:
        """Register the events of its streams."""
        for event in (STEP, *self.events):
            store.register_decider_event(self.decider, event, f"Of the process {self.view}.")

    def key_of(self, event: Event) -> str | None:
        """Return the instance that an event is for; None for none."""
        if event.decider == self.decider:
            return event.decider_id
        first, *path = self.key[event.decider].split(".")
        found: Any = getattr(event, first)
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return None if found is None or isinstance(found, Mapping | list) else str(found)

    def heard(self, instance: Instance, key: str, what: "Event | RefusedCommand") -> tuple[Instance, Do] | None:
        """Let the method for it hear an event, or a refusal; None where no method does."""
        named: str | type = what.event if isinstance(what, Event) else type(what.command)
        if isinstance(what, RefusedCommand):
            kinds: tuple[str, ...] = ("refused",)
        elif instance.ended:
            kinds = ("late",)
        else:
            kinds = ("starts",) if instance.state is None else ("on", "starts")
        method = next((self.methods[kind, named] for kind in kinds if (kind, named) in self.methods), None)
        if method is None:
            return None
        try:
            state = self.model(**self._upgraded(instance.state or {}))
        except ValidationError as error:
            wrong = ", ".join(".".join(map(str, each["loc"])) for each in error.errors())
            raise Refused(f"The state of {self.decider} {key} does not fit {self.name}: {wrong}.") from None
        object.__setattr__(state, "key", key)
        do = Do()
        getattr(state, method)(what, do)
        return Instance(state.model_dump(mode="json"), do.ended or instance.ended), do

    def _upgraded(self, stored: dict[str, Any]) -> dict[str, Any]:
        upgrade = getattr(self.model, "upgrade", None)
        return upgrade(stored) if upgrade and stored else stored


def process(*, view: str, key: Mapping[str, str], **settings: Any) -> Callable[[type[Class]], Process]:  # noqa: ANN401 - of Subscription
    """Declare a process: a class with the fields of its state, and methods that hear events.

    A method takes the event and a `Do`, does no I/O, and raises nothing. A field that is added later has a default,
    or the class a static method `upgrade`, from the stored state to one that fits.

    Args:
        view: The view's name.
        key: For each decider, where its events have the instance: `decider_id`, or a path such as `data.order_id`.
            Events without it are passed over.
        settings: As of `subscription`: concurrency, start, version, max_attempts, …

    Raises:
        InvalidSubscription: The declaration cannot work; the text says why.
    """

    def declared(written: type[Class]) -> Process:
        own = {name: each for name, each in vars(written).items() if name not in ("__dict__", "__weakref__")}
        model = type(written.__name__, (BaseModel,), own)
        marks = [(name, *mark) for name, each in own.items() for mark in getattr(each, "__hears__", ())]
        methods = {(kind, what): name for name, kind, what, _ in marks}
        waits = {what: wait for _, _, what, wait in marks if isinstance(what, str) and wait}
        events = sorted({event for kind, event in methods if isinstance(event, str)})
        if not any(kind == "starts" for kind, _ in methods) or not key:
            raise InvalidSubscription(
                f"The process {written.__qualname__} cannot work: nothing begins it.",
                hint='Give a method @starts("order_placed"), and the process a key for each decider.',
            )

        def step(event: Delivery, connection: psycopg.Connection) -> None:
            _step(made, EventStore(connection), event)

        step.__module__, step.__qualname__, step.__doc__ = written.__module__, written.__qualname__, written.__doc__
        made = Process(
            step,
            view,
            [*key, f"process:{view}"],
            events,
            upcast=True,
            model=model,
            key=key,
            methods=methods,
            waits=waits,
            **settings,
        )
        return made

    return declared


def _step(process: Process, store: EventStore, event: Delivery) -> None:
    key = process.key_of(event)
    if key is None:
        return
    step_id = id_of(event.event_id, f"{process.decider}/{key}")
    instance, version = _instance(process, store, key)
    wait = process.waits.get(event.event) if instance.state is None else None
    if wait and ("starts", event.event) not in process.methods and datetime.now(UTC) < event.created_at + wait:
        raise TryLater(f"{process.decider} {key} has not begun", after_s=PAUSE_S)
    if store.log_position(step_id) is None:
        # states are stored: they are made of sealed values, not of opened ones
        _take(process, store, key, step_id, structs.replace(event), instance, version)


def _take(
    process: Process,
    store: EventStore,
    key: str,
    step_id: UUID,
    what: Event | RefusedCommand,
    instance: Instance,
    version: int,
    depth: int = 0,
) -> tuple[Instance, int] | None:
    found = process.heard(instance, key, what)
    if found is None:
        return None
    instance, do = found
    told = {"heard": _in_words(what), "did": [_in_words(each) for each in do.asked]}
    step = NewEvent(
        STEP, {**told, "state": instance.state, "ended": instance.ended}, event_id=step_id, command_id=step_id
    )
    try:
        version = store.append(process.decider, key, step, expected_version=version).version
    except Conflict as error:
        raise SerializationFailure("another event of the instance was first") from error
    for number, asked in enumerate(do.asked):
        own = id_of(step_id, str(number))
        if isinstance(asked, Timer):
            event = NewEvent(asked.event, asked.data, event_id=own, command_id=step_id)
            store.schedule(process.decider, key, event, name=asked.name, after=asked.after)
        elif isinstance(asked, Cancel):
            store.cancel_scheduled(process.decider, key, asked.name)
        elif refusal := _refusal(store, asked, own):
            taken = None
            if depth < DEEPEST:
                taken = _take(process, store, key, own, refusal, instance, version, depth + 1)
            if taken is None:
                raise Refused(
                    f"{process.decider} {key}: {_in_words(asked)} was refused, and no method hears it: {refusal.error}"
                ) from refusal.error
            instance, version = taken
    return instance, version


def _refusal(store: EventStore, asked: Command, command_id: UUID) -> RefusedCommand | None:
    try:
        with store.savepoint():
            handle(store, asked.decider, asked.decider_id, asked.command, command_id=command_id)
    except (psycopg.Error, GaveUp):
        raise
    except Exception as error:  # noqa: BLE001 - a decider refuses by any error
        return RefusedCommand(asked.decider_id, asked.command, error)
    return None


def _instance(process: Process, store: EventStore, key: str) -> tuple[Instance, int]:
    """Return an instance by its last step, and the version of its stream."""
    version = 0
    for limit in (NEWEST, None):
        for event in store.read(process.decider, key, limit=limit, backwards=True):
            version = version or event.version or 0
            if event.event == STEP:
                return Instance(event.data["state"], event.data["ended"]), version
        if version <= NEWEST:
            break
    return Instance(), version


def _in_words(what: object) -> str:
    match what:
        case Event():
            return f"{what.event} {what.event_id}"
        case RefusedCommand():
            return f"refused {type(what.command).__name__}"
        case Timer() | Cancel():
            return f"{type(what).__name__.lower()} {what.name}"
        case Command():
            return f"command {type(what.command).__name__} for {what.decider.name} {what.decider_id}"
    raise AssertionError(what)


def _hears(kind: str, what: str | type, wait: timedelta = timedelta(0)) -> Callable[[Method], Method]:
    def marked(method: Method) -> Method:
        method.__hears__ = (*getattr(method, "__hears__", ()), (kind, what, wait))  # type: ignore[attr-defined]
        return method

    return marked
