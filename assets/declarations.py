"""Finds and loads a user's package of declarations: events, read models, captures, objects of Dagster and more.

    my_platform/            any package that Python can import; MILLRACE_DECLARATIONS names it
      events/               Pydantic models; a file each, or one module events.py; each of these is optional
      read_models/
      captures/
      subscriptions/        functions that `millrace run handlers` calls for events
      defs/                 any objects of Dagster: assets, checks, jobs, schedules, sensors, resources, components
      services.py           `services(surroundings)`: processes of its own for `millrace up`
      commands.py           `app`, a Typer: commands of its own for `millrace dev`

A file that fails to load costs only itself: the others load, and nothing of it is removed from the store. If two things
in one room have the same name, neither counts; in two rooms, only that of the earlier room. An object of Dagster counts
in `defs` only. Each is a `Fault`.
"""

import importlib
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from millrace.errors import InvalidReadModel, MillraceError

if TYPE_CHECKING:
    import dagster as dg

    from millrace.capture.declaration import Capture
    from millrace.event_schemas.model import DeclaredEvent
    from millrace.handlers.declaration import Subscription
    from millrace.read_models.declared.declaration import ReadModel
    from millrace.read_models.declared.rollups import Rollup

ROOMS = ("events", "read_models", "captures", "subscriptions", "defs")
# further files of a package; `millrace up` and the command line load them separately
FILES = ("services", "commands")

# the remedy if no package is named
NAME_IT = (
    'Name it by MILLRACE_DECLARATIONS, or by declarations = "…" in [tool.millrace] of the pyproject.toml above; or be in'
    " the folder where `millrace up` runs."
)


class InvalidDeclarations(MillraceError):
    """A package of declarations is missing, or is empty."""


@dataclass(frozen=True)
class Fault:
    """A file of declarations that fails to load.

    Attributes:
        room: The part of the package that it is in, such as `read_models` or `services`.
        name: The file's name without its suffix, by convention also the name of its declaration.
        file: The file with the error, which may be another file that this one imports.
        line: The line of the error, counted from 1; 0 if Python does not say.
        error: Python's error.
    """

    room: str
    name: str
    file: Path
    line: int
    error: str

    def __str__(self) -> str:
        """Return place and error on one line, as compilers do."""
        return f"{self.file}:{self.line}: {self.error}"


@dataclass(frozen=True)
class Part:
    """The objects of Dagster in a file of `defs`, or in a folder that a `defs.yaml` describes.

    Attributes:
        name: The module's name below `defs`.
        file: Where it is.
        definitions: Its objects.
    """

    name: str
    file: Path
    definitions: "dg.Definitions"


@dataclass(frozen=True)
class Declarations:
    """The declarations of a package.

    Attributes:
        models: The read models by name, each with its rollups, except those in a file that fails to load.
        rollups: The rollups by name.
        captures: The captures by name.
        subscriptions: The subscriptions by view.
        parts: The objects of Dagster, by the files of `defs`.
        faults: The files that fail to load; their earlier declarations stay as they are in the store.
        events: The events, each version separately.
        package: The name of the package; None if nothing is declared.
        files: The file of each thing, by its kind and name, such as `read model orders`.
    """

    models: "Mapping[str, ReadModel]" = field(default_factory=dict)
    captures: "Mapping[str, Capture]" = field(default_factory=dict)
    subscriptions: "Mapping[str, Subscription]" = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    faults: tuple[Fault, ...] = ()
    events: "tuple[DeclaredEvent, ...]" = ()
    package: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    rollups: "Mapping[str, Rollup]" = field(default_factory=dict)

    def model(self, name: str) -> "ReadModel":
        """Return a read model.

        Raises:
            MillraceError: No read model has this name; the text lists the declared ones.
        """
        if name in self.rollups:
            of = self.rollups[name].of.name
            raise MillraceError(f"{name} is a rollup of read model {of}, with which it changes.", hint=f"Name {of}.")
        if name not in self.models:
            raise MillraceError(
                f"There is no read model {name!r}.",
                detail="\n".join(f"A file of read models fails to load: {fault}" for fault in self.faults) or None,
                hint=NAME_IT if self.package is None else f"Declared are: {', '.join(self.models) or 'none'}.",
            )
        return self.models[name]

    def faults_of(self, room: str) -> list[Fault]:
        """Return the files of one room that fail to load."""
        return [fault for fault in self.faults if fault.room == room]


def declared(package: str | None, rooms: Collection[str] = ROOMS) -> Declarations:
    """Import a package of declarations and return its declarations, in the order of names.

    Args:
        package: Its name, as `Settings.declared_package` has it; None declares nothing.
        rooms: The rooms to load; `defs` imports Dagster, which takes seconds.

    Raises:
        InvalidDeclarations: There is no such package, or it is empty.
    """
    if package is None:
        return Declarations()
    # not at the top: one of these imports Spark, and the command line's help needs none
    from millrace.capture.declaration import Capture
    from millrace.event_schemas.model import declared_event
    from millrace.handlers.declaration import Subscription
    from millrace.read_models.declared.declaration import ReadModel, refuse
    from millrace.read_models.declared.feeds import feeding_circles
    from millrace.read_models.declared.rollups import Rollup, rollup_problems
    from millrace.read_models.declared.sealed import sealed, with_sealed_lookups

    find_package(package)
    found, faults = _Found(package), []
    # a read model also depends on the upcasts of its events
    wanted = ("events", *rooms) if "read_models" in rooms and "events" not in rooms else rooms
    for room in [room for room in wanted if room != "defs"]:
        for module in _with_those_below(load_part(package, room), room):
            if isinstance(module, Fault):
                faults.append(module)
            else:
                found.look_through(room, module)
    things = [thing for _, thing in found.once()]
    rollups = {thing.name: thing for thing in things if isinstance(thing, Rollup)}
    events = [*filter(None, map(declared_event, things))]
    personal = [(each.decider, each.event, field.path) for each in events for field in each.personal]
    marked: dict[str, ReadModel] = {}
    for thing in things:
        if isinstance(thing, ReadModel) and not isinstance(thing, Rollup):
            try:
                marked[thing.name] = sealed(thing, personal)
            except InvalidReadModel as error:
                found.refuse("read_models", thing, str(error))
    for circle in feeding_circles(marked.values()):
        told = f"read model {circle[0]}: its changes feed it again, through {', '.join(circle[1:])}"
        found.refuse("read_models", marked.pop(circle[0]), told)
    marked = with_sealed_lookups(marked)
    for rollup in [*rollups.values()]:
        try:
            if rollup.of.name not in marked or not any(rollup.of is thing for thing in things):
                raise InvalidReadModel(f"rollup {rollup.name}: its read model {rollup.of.name} is not declared here")
            refuse(rollup.name, rollup_problems(marked[rollup.of.name], {**rollup.keys, **rollup.columns}))
        except InvalidReadModel as error:
            found.refuse("read_models", rollup, str(error))
            del rollups[rollup.name]
    parts = [*_parts(package)] if "defs" in rooms else []
    faults += [*found.faults, *(part for part in parts if isinstance(part, Fault))]
    # declarations in a file that fails stay as they are
    broken = {fault.room for fault in faults}
    upcast = None if "events" in broken else tuple(event for event in events if event.upcasts)
    models = {
        thing.name: replace(
            marked[thing.name],
            rollups=tuple(r for r in rollups.values() if r.of is thing),
            all_rollups="read_models" not in broken,
            declared_events=upcast,
        )
        for thing in things
        if isinstance(thing, ReadModel) and thing.name in marked and not isinstance(thing, Rollup)
    }
    captures = {thing.name: thing for thing in things if isinstance(thing, Capture)}
    subscriptions = {thing.view: thing for thing in things if isinstance(thing, Subscription)}
    return Declarations(
        models=dict(sorted(models.items())),
        captures=dict(sorted(captures.items())),
        subscriptions=dict(sorted(subscriptions.items())),
        parts=tuple(part for part in parts if isinstance(part, Part)),
        faults=tuple(faults),
        events=tuple(sorted(events, key=lambda event: (event.decider, event.event, event.version))),
        package=package,
        files=found.files,
        rollups=dict(sorted(rollups.items())),
    )


def find_package(package: str) -> ModuleType:
    """Import a package of declarations, without its parts.

    Raises:
        InvalidDeclarations: It is missing, it fails to load, or it has none of the parts that declare something.
    """
    remedy = (
        "Set MILLRACE_DECLARATIONS to a package that Python can import: install it, or start in the folder it is in."
        " `millrace new DIR` makes one."
    )
    if _spec(package) is None:
        raise InvalidDeclarations(
            f"There is no package {package!r} to take declarations from.",
            detail=f"It is named here, in the home or in pyproject.toml, and Python finds it neither installed nor in {Path.cwd()}.",
            hint=remedy,
        )
    try:
        module = importlib.import_module(package)
    except Exception as error:
        raise InvalidDeclarations(
            f"The package {package} fails to load, with all that it declares.",
            detail=str(_fault(error, package, "", [])),
            hint="Correct the file. What was declared before stays as it is in the store.",
        ) from error
    if not any(_spec(f"{package}.{part}") for part in (*ROOMS, *FILES)):
        raise InvalidDeclarations(
            f"The package {package} declares nothing.",
            detail=f"It has none of {', '.join(ROOMS)}, {', '.join(f'{file}.py' for file in FILES)}.",
            hint=remedy,
        )
    return module


def code_stamp(package: str | None) -> int:
    """Return a number that changes when a file of Python of a package does, comes or goes."""
    stamps = []
    for path in (path for folder in _folders(package or "") for path in Path(folder).rglob("*.py")):
        # an editor may have replaced it
        with suppress(OSError):
            stamps.append((str(path), path.stat().st_mtime_ns, path.stat().st_size))
    return hash(tuple(sorted(stamps)))


def load_part(package: str | None, part: str) -> ModuleType | Fault | None:
    """Import one module of a package of declarations, such as `services`.

    Return None if the package has none, and a fault if it fails to load.
    """
    if package is None or _spec(f"{package}.{part}") is None:
        return None
    return _load(f"{package}.{part}", part)


def fault_in(package: str, part: str, error: Exception) -> Fault:
    """Return the place of an error that a function of a package raised."""
    return _fault(error, f"{package}.{part}", part, _folders(package))


class _Found:
    def __init__(self, package: str) -> None:
        self.package = package
        self.things: list[tuple[str, object]] = []
        # the sensors of all models, and of views without a declaration
        self.files = dict.fromkeys(("sensor poll_read_models", "sensor poll_views"), Path("Millrace"))
        self._rooms: dict[str, str] = {}
        self.faults: list[Fault] = []
        self._twice: set[str] = set()

    def look_through(self, room: str, module: ModuleType) -> None:
        """Take a module's declarations; one that it imports from another file of the room does not count twice."""
        for named, value in vars(module).items():
            if is_of_dagster(value):
                file = Path(module.__file__ or module.__name__)
                self.faults.append(
                    Fault(room, named, file, 0, f"{named} is left out: objects of Dagster are found in defs")
                )
            names = set(_names(room, value))
            if not names or any(value is thing for _, thing in self.things):
                continue
            file = Path(module.__file__ or module.__name__)
            if clash := sorted(names & self.files.keys()):
                other, alike = self.files[clash[0]], self._rooms.get(clash[0]) == room
                self._twice |= {*clash} if alike else set()
                said = (
                    f"{clash[0]} is declared twice, in {other}, too: {'neither counts' if alike else 'that one counts'}"
                )
                self.refuse(room, value, said, file)
            else:
                self.files |= dict.fromkeys(names, file)
                self._rooms |= dict.fromkeys(names, room)
                self.things.append((room, value))

    def refuse(self, room: str, thing: object, why: str, file: Path | None = None) -> None:
        """Record a declaration that does not count, and why."""
        name = str(getattr(thing, "name", room))
        self.faults.append(Fault(room, name, file or self.files[f"read model {name}"], 0, why))

    def once(self) -> list[tuple[str, object]]:
        """Return the things without a clash of names, each with its room."""
        return [(room, thing) for room, thing in self.things if not self._twice & set(_names(room, thing))]


def _names(room: str, value: object) -> Iterator[str]:
    """Yield the names that a declaration takes, each with its kind; none for another value."""
    if room == "events":
        from millrace.event_schemas.model import declared_event

        if declared := declared_event(value):
            yield str(declared)
    elif room == "read_models":
        from millrace.read_models.declared.declaration import ReadModel
        from millrace.read_models.declared.rollups import Rollup

        if isinstance(value, ReadModel):
            # sensors and runs are found by the names of views and captures
            own_view = [] if isinstance(value, Rollup) else [f"view {value.view}", f"sensor poll_{value.view}"]
            yield from (f"read model {value.name}", *own_view)
    elif room == "subscriptions":
        from millrace.handlers.declaration import Subscription

        if isinstance(value, Subscription):
            yield f"view {value.view}"
    else:
        from millrace.capture.declaration import Capture

        if isinstance(value, Capture):
            yield from (f"capture {value.name}", f"sensor poll_{value.name}")
            yield from (f"decider {table.stream_decider}" for table in value.tables)


def is_of_dagster(value: object) -> bool:
    """Return whether a value is an object that Dagster loads: none is while Dagster is not imported."""
    loaded = sys.modules.get("dagster")
    kinds = ("AssetsDefinition", "AssetSpec", "SensorDefinition", "ScheduleDefinition", "JobDefinition", "Definitions")
    return loaded is not None and isinstance(value, tuple(getattr(loaded, kind) for kind in kinds))


def _parts(package: str) -> Iterator[Part | Fault]:
    """Yield the objects of Dagster in each file of `defs`, and in each folder that a `defs.yaml` describes.

    Dagster's own loader of such a folder fails as a whole if one file fails.
    """
    for module in _with_those_below(load_part(package, "defs"), "defs"):
        if isinstance(module, Fault):
            yield module
            continue
        component = _component_of(module)
        file = component or Path(module.__file__ or module.__name__)
        name = module.__name__.removeprefix(f"{package}.")
        try:
            with warnings.catch_warnings():
                # those of Dagster about itself: its loader of modules is a preview, its components use old Pydantic
                warnings.simplefilter("ignore")
                definitions = _of_component(package, module) if component else _of_module(module)
        except Exception as error:  # noqa: BLE001  whatever a user's component does wrong
            # Dagster wraps an error of a component
            yield _fault(error.__cause__ or error, module.__name__, "defs", _folders(package))
        else:
            yield Part(name, file, definitions)


def _of_module(module: ModuleType) -> "dg.Definitions":
    import dagster as dg
    from dagster.components.definitions import LazyDefinitions

    values = vars(module).values()
    whole = [value for value in values if isinstance(value, dg.Definitions)]
    whole += [value() for value in values if isinstance(value, LazyDefinitions)]
    # Dagster takes an object that a file imports from another one once
    return dg.Definitions.merge(dg.load_definitions_from_module(module), *whole)


def _of_component(package: str, module: ModuleType) -> "dg.Definitions":
    import dagster as dg

    return dg.ComponentTree.from_module(module, Path(*find_package(package).__path__)).build_defs()


def _component_of(module: ModuleType) -> Path | None:
    """Return the `defs.yaml` of a folder, if it has one."""
    files = (Path(folder, "defs.yaml") for folder in getattr(module, "__path__", ()))
    return next((file for file in files if file.exists()), None)


def _with_those_below(module: ModuleType | Fault | None, room: str) -> Iterator[ModuleType | Fault]:
    """Yield a module of a room, and import those in it if it is a package."""
    if module is not None:
        yield module
    if not isinstance(module, ModuleType) or _component_of(module):
        return
    path = [Path(folder) for folder in getattr(module, "__path__", ())]
    files = {info.name for info in pkgutil.iter_modules(map(str, path))}
    # a folder needs no __init__.py to be a package
    folders = {
        below.parent.name for folder in path for kind in ("*/*.py", "*/defs.yaml") for below in folder.glob(kind)
    }
    for name in sorted(files | folders):
        yield from _with_those_below(_load(f"{module.__name__}.{name}", room), room)


def _load(name: str, room: str) -> ModuleType | Fault:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a user's file does wrong
        return _fault(error, name, room, _folders(name.partition(f".{room}")[0]))


def _fault(error: BaseException, module: str, room: str, folders: Collection[str]) -> Fault:
    """Find the last line of the user's own code that led to an error."""
    spec = _spec(module)
    origin = (spec.origin if spec else None) or module
    file, line = origin, 0
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == origin or any(Path(frame.filename).is_relative_to(folder) for folder in folders):
            file, line = frame.filename, frame.lineno or 0
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno or 0
    said = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return Fault(room, module.rpartition(".")[2], Path(file), line, f"{type(error).__name__}: {said}".rstrip(": "))


def _folders(package: str) -> list[str]:
    spec = _spec(package)
    return [*(spec.submodule_search_locations or ())] if spec else []


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except (ImportError, ValueError):  # a part of the name is not there, or is no package
        return None
