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
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from msgspec import structs
from psycopg.errors import SerializationFailure
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from millrace.commands.decider import Decider
from millrace.commands.handle import handle
from millrace.errors import (
    Conflict,
    EventNotRegistered,
    GaveUp,
    InvalidSubscription,
    MillraceError,
    StreamClosed,
    TryLater,
)
from millrace.event_store import Delivery, Event, EventStore, NewEvent
from millrace.event_store.ids import id_of
from millrace.event_store.platform import PlatformStore
from millrace.handlers.declaration import Refused, Subscription
from millrace.patience import PAUSE_S
from millrace.user_code import finished, is_async, is_generator

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
    returned: bool = False

    def timer(self, name: str, *, after: timedelta, event: str, data: Mapping[str, Any] | None = None) -> None:
        """Let the instance hear an event after a time; a timer of the same name is moved."""
        self._ask(Timer(name, after, event, data or {}))

    def cancel(self, name: str) -> None:
        """Take a timer back; it may have fired."""
        self._ask(Cancel(name))

    def command(self, decider: Decider[Any, Any], decider_id: str, command: Any) -> None:  # noqa: ANN401 - a user's
        """Handle a command, once however often the step is tried."""
        self._ask(Command(decider, str(decider_id), command))

    def end(self) -> None:
        """End the instance: it hears no further event, except by `on_late`."""
        self._ask()
        self.ended = True

    def _ask(self, *what: Timer | Cancel | Command) -> None:
        if self.returned:
            raise RuntimeError("The method has returned: what it asks for now would never be done.")
        self.asked += what


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
    imports: bool

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
        try:
            for event in (STEP, *self.events):
                store.register_decider_event(self.decider, event, f"Of the process {self.view}.")
        except psycopg.errors.InsufficientPrivilege as error:
            raise InvalidSubscription(
                f"The process {self.name} cannot work: its login may not append.", hint="Grant it event_store_writer."
            ) from error

    def key_of(self, event: Event) -> str | None:
        """Return the instance that an event is for; None for none."""
        if event.decider == self.decider:
            return event.decider_id
        first, *path = self.key[event.decider].split(".")
        found: Any = getattr(event, first)
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, bool):
            return str(found).lower()
        return None if found in (None, "") or isinstance(found, Mapping | list) else str(found)

    def unfit_states(self, store: PlatformStore) -> list[str]:
        """Say which living instances among those of the newest steps have a state that does not fit the class."""
        try:
            steps = store.latest_events(100, self.decider, event=STEP)
        except EventNotRegistered:
            return []
        unfit = list[str]()
        # the last one of each instance counts
        for step in {step.decider_id: step for step in reversed(steps)}.values():
            try:
                if not step.data["ended"]:
                    self.read(step.decider_id, step.data["state"])
            except Refused as error:
                unfit += [str(error)]
        return unfit

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
        state = self.read(key, instance.state)
        do = Do()
        finished(getattr(state, method)(what, do))
        do.returned = True
        for each in do.asked:
            if isinstance(each, Timer) and each.event not in self.events:
                raise Refused(f"No method of {self.name} hears {each.event!r}, the event of the timer {each.name!r}.")
        return Instance(self._stored(state, key), do.ended or instance.ended), do

    def _stored(self, state: BaseModel, key: str) -> dict[str, Any]:
        """Return a state as JSON, from which the next step gets the same state."""
        try:
            stored = state.model_dump(mode="json", warnings=False)
            wrong = ", ".join(name for name, value in self.model(**stored) if getattr(state, name) != value)
        except PydanticSerializationError as error:
            wrong = str(error)
        except ValidationError as error:
            wrong = _wrong(error)
        if wrong:
            raise Refused(f"The new state of {self.decider} {key} would not come back from JSON as it is: {wrong}.")
        return stored

    def read(self, key: str, stored: dict[str, Any] | None) -> BaseModel:
        """Return an instance of the class with a stored state, or without one.

        Raises:
            Refused: The state does not fit the class.
        """
        upgrade = getattr(self.model, "upgrade", None)
        try:
            state = self.model(**(upgrade(stored) if upgrade and stored else stored or {}))
        except ValidationError as error:
            raise Refused(f"The state of {self.decider} {key} does not fit {self.name}: {_wrong(error)}.") from None
        object.__setattr__(state, "key", key)
        return state


def process(
    *,
    view: str,
    key: Mapping[str, str],
    imports: bool = False,
    **settings: Any,  # noqa: ANN401 - of Subscription
) -> Callable[[type[Class]], Process]:
    """Declare a process: a class with the fields of its state, and methods that hear events.

    A method takes the event and a `Do`, does no I/O, and raises nothing. A field that is added later has a default,
    or the class a static method `upgrade`, from the stored state to one that fits.

    Args:
        view: The view's name.
        key: For each decider, where its events have the instance: `decider_id`, or a path such as `data.order_id`.
            Events without it are passed over.
        imports: Whether imported events begin instances.
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
        _require_it_works(written, model, key, marks)

        # a new store makes its cursors anew, which takes as long as a call
        kept = threading.local()

        def step(event: Delivery, connection: psycopg.Connection) -> None:
            if getattr(kept, "connection", None) is not connection:
                kept.connection, kept.store = connection, EventStore(connection)
            _step(made, kept.store, event)

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
            imports=imports,
            **settings,
        )
        return made

    return declared


def _require_it_works(
    written: type,
    model: type[BaseModel],
    key: Mapping[str, str],
    marks: Sequence[tuple[str, str, str | type, timedelta]],
) -> None:
    heard = [(kind, what) for _, kind, what, _ in marks]
    never = [name for name, *_ in marks if is_async(vars(written)[name]) or is_generator(vars(written)[name])]
    required = [name for name, each in model.model_fields.items() if each.is_required()]
    paths = {} if isinstance(key, str) else key
    misled = [path for path in paths.values() if not re.fullmatch(r"decider_id|(data|metadata)(\.[^.]+)+", path)]
    checks = (
        (written.__bases__ != (object,), "it has a base class, whose methods and fields would be lost"),
        (not paths, 'key names no path for a decider, such as {"order": "decider_id"}'),
        (misled, f"a key is decider_id, or a path such as data.order_id: {misled}"),
        ("starts" not in dict(heard), 'nothing begins it; give a method @starts("order_placed")'),
        (len(heard) > len(set(heard)), "two methods hear the same event, or the same refused command"),
        (STEP in [what for _, what in heard], f"an event named {STEP} is one of its own steps"),
        (never, f"these methods are async or generators, so their code would not run: {never}"),
        (required, f"these fields need a default: {required}"),
        (model.__private_attributes__, f"these fields would not be stored: {[*model.__private_attributes__]}"),
    )
    for wrong, fault in checks:
        if wrong:
            raise InvalidSubscription(f"The process {written.__qualname__} cannot work: {fault}.")


def _step(process: Process, store: EventStore, event: Delivery) -> None:
    key = process.key_of(event)
    if key is None:
        return
    step_id = id_of(event.event_id, f"{process.decider}/{key}")
    instance, version, is_stored = _instance(process, store, key, step_id)
    wait = process.waits.get(event.event) if instance.state is None else None
    if wait and ("starts", event.event) not in process.methods and datetime.now(UTC) < event.created_at + wait:
        raise TryLater(f"{process.decider} {key} has not begun", after_s=PAUSE_S)
    if instance.state is None and not process.imports and (event.metadata or {}).get("imported"):
        return
    if not is_stored:
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
        elif refusal := _refusal(store, asked, own, heard=("refused", type(asked.command)) in process.methods):
            taken = None
            if depth < DEEPEST:
                taken = _take(process, store, key, own, refusal, instance, version, depth + 1)
            if taken is None:
                raise Refused(
                    f"{process.decider} {key}: {_in_words(asked)} was refused, and no method hears it: {refusal.error}"
                ) from refusal.error
            instance, version = taken
    return instance, version


def _refusal(store: EventStore, asked: Command, command_id: UUID, *, heard: bool) -> RefusedCommand | None:
    try:
        # where no method hears it, the whole step is rolled back
        with store.savepoint() if heard else nullcontext():
            handle(store, asked.decider, asked.decider_id, asked.command, command_id=command_id)
    except GaveUp as error:
        raise SerializationFailure("other writers of the command's stream were first") from error
    except Exception as error:
        # a decider refuses by any error of its own; the store refuses what is set up wrong, and closed streams
        if isinstance(error, psycopg.Error | MillraceError) and not isinstance(error, StreamClosed):
            raise
        return RefusedCommand(asked.decider_id, asked.command, error)
    return None


def _instance(process: Process, store: EventStore, key: str, step_id: UUID) -> tuple[Instance, int, bool]:
    """Return an instance by its last step, the version of its stream, and whether a step is stored."""
    newest = [*store.read(process.decider, key, limit=NEWEST, backwards=True)]
    is_stored, older = step_id in [event.event_id for event in newest], iter(newest)
    if len(newest) == NEWEST:
        is_stored = is_stored or store.log_position(step_id) is not None
        older = store.read(process.decider, key, backwards=True)
    last = next((event for event in chain(newest, older) if event.event == STEP), None)
    instance = Instance() if last is None else Instance(last.data["state"], last.data["ended"])
    return instance, newest[0].version or 0 if newest else 0, is_stored


def _wrong(error: ValidationError) -> str:
    # no values: they may be personal
    return ", ".join(".".join(map(str, each["loc"])) for each in error.errors())


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
