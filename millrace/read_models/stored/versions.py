"""The versions of a read model: the one that people read, and one that is built beside it from a changed declaration.

Not here: their tables (`tables`), building them (`drain`).

A version is identified by the fingerprint of its declaration. It has tables, a view of the event store, and so
checkpoints and locks of its own: building it leaves the serving version alone. It serves once it is nowhere behind the
version before it, which is then removed. One that another declaration overtook before it served is removed, too.
"""

import logging
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psycopg

from millrace.archive.history import log_history
from millrace.errors import MillraceError, UnknownView, ViewInUse
from millrace.event_schemas.registering import states_in_store
from millrace.event_store.json_text import written
from millrace.event_store.platform import PlatformStore
from millrace.patience import PAUSE_S
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.upcasts import Upcast, stored_upcasts
from millrace.read_models.stored.feed import tell_replaced
from millrace.read_models.stored.indexes import are_due, create_index, stored_indexes
from millrace.read_models.stored.rollup_tables import are_current, drop_rollups, show_rollups, update_rollups
from millrace.read_models.stored.store import ReadModelStore, Version
from millrace.read_models.stored.tables import (
    create_tables,
    create_view,
    drop_tables,
    drop_view,
    require_ownership,
    require_whole_log,
    wait_for_locks_at_most,
)

logger = logging.getLogger(__name__)

# the owner of the views of read models: no consumer narrows one, takes its leases or moves it
OWNER = "event_store_owner"


class AheadOfLog(MillraceError):
    """A read model has events that the log does not have: its rows and the log are of different times."""


class NothingToApprove(MillraceError):
    """No version of the declaration waits for approval."""


class EventsNotRegistered(MillraceError):
    """A read model reads a version of an event that the store does not have."""


class WrongView(MillraceError):
    """The event store's view of a read model was removed, or belongs to something else."""


def versions(connection: psycopg.Connection, name: str) -> list[Version]:
    """Return the versions of a model, the oldest first."""
    return ReadModelStore(connection).model_versions(name)


def with_upcasts(
    connection: psycopg.Connection, model: ReadModel, stored: tuple[Upcast, ...] | None = None
) -> ReadModel:
    """Return the model as it reads events now, by the store's upcasts (`stored`), unless they are resolved already.

    Declared upcasts that the store does not have are added, so that a declaration is judged as it will be deployed.
    """
    if model.upcasts is not None:
        return model
    stored = stored_upcasts(connection) if stored is None else stored
    stored_keys = {(one.decider, one.event, one.to_version) for one in stored}
    unregistered = {
        (event.decider, event.event, version): Upcast(event.decider, event.event, version, written(moves))
        for event in model.declared_events or ()
        for version, moves in event.upcasts.items()
        if (event.decider, event.event, version) not in stored_keys
    }
    return replace(model, upcasts=stored, unregistered=tuple(model.of_taken_events(unregistered.values())))


def register_declared(connection: psycopg.Connection, model: ReadModel) -> ReadModel:
    """Register declared events with upcasts that the model needs and the store lacks; return the model with these.

    Raises:
        EventsNotRegistered: The store refuses an event.
    """
    model = with_upcasts(connection, model)
    if not model.unregistered:
        return model
    missing = {(one.decider, one.event) for one in model.unregistered}
    events = [each for each in model.declared_events or () if (each.decider, each.event) in missing]
    try:
        problems = [
            each.error for each in states_in_store(PlatformStore(connection), events, keep=True) if each.is_wrong
        ]
    except psycopg.errors.InsufficientPrivilege as error:
        problems = [str(error).strip()]
    model = with_upcasts(connection, replace(model, upcasts=None))
    if model.unregistered:
        first = model.unregistered[0]
        raise EventsNotRegistered(
            f"Read model {model.name} reads event {first.event} of decider {first.decider} in version {first.to_version},"
            " and the store has no upcast to it: nothing is built without.",
            detail="\n".join(problems),
            hint="Register the declared events by a role that may: millrace migrate",
        )
    return model


def current_version(connection: psycopg.Connection, model: ReadModel) -> ReadModel | None:
    """Return the model as the version of its declaration; None if no drain has made that version yet."""
    model = with_upcasts(connection, model)
    found = _declared_as(versions(connection, model.name), model)
    return model.at_version(found.version, found.view) if found else None


def built_and_next(connection: psycopg.Connection, model: ReadModel) -> tuple[ReadModel | None, bool]:
    """Return the model as the version of its declaration, if there is one, and whether `serve_if_caught_up` is due.

    It is due if that version is ready to serve, or if a rollup or an index of it is new or changed.
    """
    model = with_upcasts(connection, model)
    stored = versions(connection, model.name)
    found = _declared_as(stored, model)
    if found is None:
        return None, False
    built = model.at_version(found.version, found.view)
    if built.rollups and not are_current(connection, built, shown=found.serves):
        return built, True
    if built.indexes and are_due(connection, built):
        return built, True
    return built, _is_ready(connection, built, stored)


def built_anew(connection: psycopg.Connection, models: Iterable[ReadModel]) -> list[str]:
    """Return the models with rows that would be built anew, once the upcasts of declared events are registered."""
    return [
        model.name
        for model in models
        if versions(connection, model.name) and current_version(connection, model) is None
    ]


def newest_version(connection: psycopg.Connection, model: ReadModel) -> int:
    """Return the number of the version of the model that was made last, of any declaration."""
    return max((stored.version for stored in versions(connection, model.name)), default=0)


def unbuilt_partitions(connection: psycopg.Connection, model: ReadModel) -> list[int]:
    """Return the log partitions with first events only in the archive: the version has to rebuild them first."""
    return next((v.unbuilt for v in versions(connection, model.name) if v.version == model.version), [])


def mark_built(connection: psycopg.Connection, model: ReadModel, partitions: list[int]) -> None:
    """Record, in the transaction of their rebuild, that log partitions are built from their first events on."""
    ReadModelStore(connection).mark_built(model.name, model.version, partitions)


def purged_discards(connection: psycopg.Connection, view: str) -> frozenset[int]:
    """Return the offsets of events that an operator discarded for any version of a model and that were purged since.

    `view` is the one that the model declares. A rebuild leaves these events out: if one failed again, no later drain
    could read it.
    """
    return ReadModelStore(connection).purged_discards(view)


def attach_version(
    connection: psycopg.Connection, model: ReadModel, archive: Path | None = None, consumer: str | None = None
) -> ReadModel:
    """Become a consumer, by this name, of the version that `ensure_version` returns; remove unused versions.

    The declared events that the model needs are registered before.

    Raises the errors of `ensure_version` and of `register_declared`.
    """
    model = register_declared(connection, model)
    # one transaction: otherwise another declaration's drain could drop the version in between, as overtaken
    with connection.transaction():
        built = ensure_version(connection, model, archive)
        PlatformStore(connection).attach_consumer(built.view, consumer)
        if not model.feed:
            ReadModelStore(connection).end_feed(model.name)
    drop_unused_versions(connection, built)
    return built


def ensure_version(connection: psycopg.Connection, model: ReadModel, archive: Path | None = None) -> ReadModel:
    """Make the model's tables and register its view, once; among concurrent callers one does it.

    Returns the model as the version of its declaration. If another version serves, this one is built beside it. If the
    log was shortened, `archive` is the folder with the events that the log lost.

    Raises:
        WrongView: The view was removed, or belongs to something else.
        AheadOfLog: The view's checkpoint is beyond the end of the log.
        HistoryMissing: The tables do not exist, the log lost some events, and none of these is archived.
        LogIncomplete: Only some of the lost events are archived.
        ForeignArchive: The folder is not this store's archive.
        ArchiveDamaged: A file with lost events is missing.
        NotOwned: The tables or the view to replace belong to a role that the login is not a member of.
        LookupFailed: It is the first version, and a model that it looks up has no view yet, or lacks that column.
        EventsNotRegistered: A file of events fails to load, and the version would be a new one.
    """
    with connection.transaction():
        _lock(connection, model)
        model = with_upcasts(connection, model)
        stored = versions(connection, model.name)
        found = _declared_as(stored, model)
        if found is None:
            if model.declared_events is None:
                raise EventsNotRegistered(
                    f"Read model {model.name} is not built anew while a file of events fails to load: it may have an upcast.",
                    hint="Correct the file, which `millrace status` names.",
                )
            return _make_version(connection, model, stored, archive)
        # rows without their checkpoint would count every event again; a checkpoint without its rows would miss history
        if not PlatformStore(connection).is_registered(found.view):
            raise WrongView(
                f"The view {found.view} of read model {model.name} was removed, and its progress with it.",
                hint=f"Build it anew: millrace view reset {model.name}",
            )
        for ahead in PlatformStore(connection).views_beyond_log():
            if ahead.view == found.view:
                raise AheadOfLog(
                    f"The read model {model.name} is ahead of the log: it would pass over events.",
                    detail=f"Its view {ahead.view} stands at position {ahead.position} of log partition {ahead.partition}, which"
                    f" ends at {ahead.high_water_mark}.",
                    hint=f"Rows and log are of different times. Build it anew: millrace view reset {model.name}",
                )
        built = model.at_version(found.version, found.view)
        _register(connection, built)
        return built


def serve_if_caught_up(connection: psycopg.Connection, model: ReadModel) -> bool:
    """Let the model's SQL view show this version if it is nowhere behind the serving one; return whether it serves.

    Its rollups are changed to the declared ones, whether it serves or not.

    Raises:
        DependentObjects: The view, or a rollup's, has other columns, and something in the database depends on it.
        LookupFailed: A model that it looks up does not show that column yet.
        RollupFailed: The present rows do not fit a rollup, or the login may not make it.
        psycopg.errors.LockNotAvailable: A reader held the view for longer than others should wait behind this call.
    """
    try:
        if not are_current(connection, model, shown=_serves(connection, model)):
            with connection.transaction():
                # rollups group the rows as they are once commits wait, not as they were when this call began to wait
                connection.execute("set transaction isolation level read committed")
                _lock(connection, model)
                wait_for_locks_at_most(connection, PAUSE_S)
                # the version may be gone
                if any(stored.version == model.version for stored in versions(connection, model.name)):
                    update_rollups(connection, model, shown=_serves(connection, model))
        if not is_ready_to_serve(connection, model):
            return _serves(connection, model)
        with connection.transaction() as switch:
            _lock(connection, model)
            # replacing the view waits for its present readers, and all later readers wait behind that
            wait_for_locks_at_most(connection, PAUSE_S)
            # before the last check: while this waits for readers, the serving version consumes further
            create_view(connection, model)
            show_rollups(connection, model)
            if not is_ready_to_serve(connection, model):
                raise psycopg.Rollback(switch)
            _name_left_indexes(connection, model)
            ReadModelStore(connection).serve_version(model.name, model.version)
            tell_replaced(connection, model)
    except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
        return False  # the next call tries again
    drop_unused_versions(connection, model)
    return _serves(connection, model)


def _name_left_indexes(connection: psycopg.Connection, model: ReadModel) -> None:
    """Log the indexes that people made for the version that served until now: they are dropped with its table."""
    serving = next(version for version in versions(connection, model.name) if version.serves)
    stored = stored_indexes(connection, model.at_version(serving.version, serving.view))
    handmade = [f"{one.name} ({one.definition})" for one in stored if not one.is_declared]
    if handmade:
        logger.warning(
            "Version %d of read model %s does not have the indexes that were made by hand for version %d: %s."
            " Declare them in indexes=, or make them on read_models.%s.",
            model.version,
            model.name,
            serving.version,
            ", ".join(handmade),
            model.state_table,
        )


def waiting_version(connection: psycopg.Connection, model: ReadModel) -> ReadModel | None:
    """Return the model as the version of its declaration, if that waits for approval."""
    built = current_version(connection, model)
    waits = {stored.version for stored in versions(connection, model.name) if not (stored.approved or stored.serves)}
    return built if built is not None and built.version in waits else None


def approve_version(connection: psycopg.Connection, model: ReadModel, reason: str | None = None) -> bool:
    """Let the version of the declaration serve once it has caught up; return whether it serves now.

    If it is killed after the approval, or if readers block it, the next drain lets the version serve.

    Raises:
        NothingToApprove: No version of the declaration waits.

    After the approval it raises the errors of `serve_if_caught_up`, except LockNotAvailable: if readers hold the view
    it returns False.
    """
    with connection.transaction():
        _lock(connection, model)
        stored = versions(connection, model.name)
        built = current_version(connection, model)
        if built is None:
            raise NothingToApprove(
                f"No version of read model {model.name} is of this declaration.",
                detail=f"There are: {', '.join(f'version {each.version}' for each in stored) or 'none'}.",
                hint=f"Use the code that the drains have, or let one build it: millrace run drain {model.name} --once",
            )
        if _serves(connection, built):
            raise NothingToApprove(f"Version {built.version} of read model {model.name} serves: nothing waits.")
        if stored[-1].version > built.version:
            raise NothingToApprove(
                f"Version {built.version} of read model {model.name} was overtaken by version {stored[-1].version},"
                " of another declaration.",
                hint="Approve that one with the code that declares it.",
            )
        ReadModelStore(connection).approve_version(model.name, built.version, reason)
    try:
        return serve_if_caught_up(connection, built)
    except psycopg.errors.LockNotAvailable:
        return False


def is_ready_to_serve(connection: psycopg.Connection, model: ReadModel) -> bool:
    """Return whether this version of the model could serve and does not yet."""
    return _is_ready(connection, model, versions(connection, model.name))


def _is_ready(connection: psycopg.Connection, model: ReadModel, versions: list[Version]) -> bool:
    by_number = {version.version: version for version in versions}
    serving = next((version for version in by_number.values() if version.serves), None)
    # a version that was overtaken, or is gone, does not come back
    if model.version not in by_number or serving is None or serving.version >= model.version:
        return False
    if by_number[model.version].unbuilt or not by_number[model.version].approved:
        return False
    return PlatformStore(connection).has_caught_up(model.view, serving.view)


def drop_unused_versions(connection: psycopg.Connection, model: ReadModel) -> None:
    """Remove all versions but the serving one and the given one.

    A version that a drain builds or a reader reads stays until another call. A version that is newer than the given one
    stays for a day: newer code than this may be building it.
    """
    for version in versions(connection, model.name):
        if version.serves or version.version == model.version:
            continue
        with suppress(MillraceError, psycopg.errors.LockNotAvailable), connection.transaction():
            _lock(connection, model)
            wait_for_locks_at_most(connection, PAUSE_S)
            models = ReadModelStore(connection)
            if models.is_unused_version(model.name, version.version, model.version):
                _drop(connection, model.at_version(version.version, version.view), "replaced")


def reset_model(connection: psycopg.Connection, model: ReadModel) -> None:
    """Remove the model, all its versions and all progress; the next drain builds it from the first event.

    Raises:
        MillraceError: A drain or a rebuild holds a lease.
        NotOwned: The tables or the view belong to a role that the login is not a member of.
    """
    with connection.transaction():
        _lock(connection, model)
        built = [model.at_version(stored.version, stored.view) for stored in versions(connection, model.name)]
        for version in built:
            require_ownership(connection, version)
        tell_replaced(connection, model)
        drop_view(connection, model)
        for version in built:
            drop_rollups(connection, version, with_views=True)
            _drop(connection, version, "reset")


def _make_version(
    connection: psycopg.Connection, model: ReadModel, stored: list[Version], archive: Path | None
) -> ReadModel:
    """Make the tables of the first version of the model, or of one beside the known ones, and register its view."""
    store, models = PlatformStore(connection), ReadModelStore(connection)
    if not stored:
        if store.is_registered(model.view):
            owner = models.version_of_view(model.view)
            raise WrongView(
                f"The view {model.view} is registered already, and not for read model {model.name}.",
                detail=f"It is that of version {owner.version} of read model {owner.model}." if owner else None,
                hint="Declare the read model with another view=, or remove the view that has its name, whose progress is"
                f" lost: millrace view remove {shlex.quote(model.view)}",
            )
        built = model
    else:
        serving = next(version for version in stored if version.serves)
        # the tables that it will replace
        require_ownership(connection, model.at_version(serving.version, serving.view))
        number = stored[-1].version + 1
        while store.is_registered(f"{model.view}_v{number}"):
            number += 1
        built = model.at_version(number, f"{model.view}_v{number}")
    create_tables(connection, built)
    for index in built.indexes:
        connection.execute(create_index(built, index))
    if not stored:
        create_view(connection, built)
    _register(connection, built)
    if stored and not any(poll.enabled for poll in store.poll_views([serving.view])):
        store.enable_view(built.view, False, reason=f"{serving.view} was disabled")
    # after the registration, which keeps the present events
    unbuilt = _only_archived(connection, archive)
    # The first version changes nothing that is read yet. If this is the serving declaration, read with newer upcasts,
    # no code is left that would keep the serving version up to date.
    same = bool(stored) and serving.fingerprint.partition("+")[0] == model.fingerprint.partition("+")[0]
    approved = not stored or model.serve == "built" or same
    models.declare_version(model.name, built.version, built.view, model.fingerprint, not stored, unbuilt, approved)
    return built


def _only_archived(connection: psycopg.Connection, archive: Path | None) -> list[int]:
    """Return the log partitions with first events only in the archive; refuse if the archive lacks them, too."""
    store = PlatformStore(connection)
    shortened = [held.partition for held in store.available_offset_range() if held.earliest_position]
    history = log_history(connection, archive, shortened) if archive is not None and shortened else None
    if history is None or not history.files:
        require_whole_log(connection)
    else:
        history.require_whole()
    return shortened


def _drop(connection: psycopg.Connection, model: ReadModel, why: str) -> None:
    require_ownership(connection, model)
    # an attached consumer may hold no lease now, and would lose its view; a lease refuses below
    consumers = sum(poll.consumers for poll in PlatformStore(connection).poll_views([model.view]))
    if consumers:
        raise _being_built(model, f"{consumers} consumers of its view are at work or wait for events")
    # rollups that are still shown of another version are no longer declared, if all declared ones are known
    drop_rollups(connection, model, with_views=model.all_rollups)
    drop_tables(connection, model)
    ReadModelStore(connection).drop_version(model.name, model.version)
    try:
        # a transaction within: a view that was removed before is no reason to stop
        with suppress(UnknownView), connection.transaction():
            PlatformStore(connection).unregister_view(
                model.view, f"version {model.version} of read model {model.name}: {why}"
            )
    except ViewInUse as error:
        raise _being_built(model, error.detail) from error


def _serves(connection: psycopg.Connection, model: ReadModel) -> bool:
    return any(v.serves for v in versions(connection, model.name) if v.version == model.version)


def _declared_as(stored: list[Version], model: ReadModel) -> Version | None:
    """Return the version of a declaration: the serving one, or one that is built after it."""
    serving = next((version.version for version in stored if version.serves), 0)
    return next((v for v in stored if v.fingerprint == model.fingerprint and v.version >= serving), None)


def _register(connection: psycopg.Connection, model: ReadModel) -> None:
    PlatformStore(connection).register_view(
        model.view,
        "-infinity",
        pooling_delay_s=model.pooling_delay_s,
        mode="bulk",
        # all that the declaration states: None would keep the present filter
        deciders=model.deciders or [],
        events=model.events or [],
        owner=OWNER,
    )
    PlatformStore(connection).set_max_lag(model.view, model.max_lag_s)


def _lock(connection: psycopg.Connection, model: ReadModel) -> None:
    """Lock the model's versions against other sessions until the transaction ends."""
    ReadModelStore(connection).lock_model(model.name)


def _being_built(model: ReadModel, why: str | None) -> MillraceError:
    return MillraceError(
        f"Read model {model.name} is being built.",
        detail=why,
        hint=f"Let its drain leave it, and try again after some seconds: millrace view disable {shlex.quote(model.view)}",
    )
