"""The lineage of columns as Dagster shows it: from captured tables and events to read models."""

from collections.abc import Iterable, Iterator, Sequence

import dagster as dg

from millrace.assets.declared_events import asset_key, declared_for, field_columns
from millrace.capture.declaration import Capture
from millrace.event_schemas.model import DeclaredEvent
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.rollups import Rollup
from millrace.read_models.shown.lineage import origins

EVENTS = dg.AssetKey(["event_store", "events"])
RECORD = "data.record."
COLUMN_LINEAGE = "dagster/column_lineage"


def column_schema(model: ReadModel) -> dg.TableSchema:
    """Return the columns of a read model with their types, each with a text about its computation."""
    descriptions = {origin.column: origin.in_words for origin in origins(model)}
    return dg.TableSchema(
        [dg.TableColumn(name, type_, descriptions[name]) for name, type_ in model.public_columns().items()]
    )


def column_lineage(
    model: ReadModel, captures: Iterable[Capture] = (), events: Iterable[DeclaredEvent] = ()
) -> dg.TableColumnLineage:
    """Return for each column the fields of events that it is computed from, and the captured columns behind them."""
    tables, declared = list(captures), declared_for(model, events)
    return dg.TableColumnLineage(
        {
            origin.column: [
                *(
                    dep
                    for source in origin.sources
                    for dep in (*_deps(model, source, tables), *_fields(model, origin.column, source, declared))
                ),
                *_looked_up(model, origin.column),
            ]
            for origin in origins(model)
        }
    )


def rollup_lineage(rollup: Rollup) -> dg.TableColumnLineage:
    """Return for each column of a rollup the columns of its read model that it is computed from."""
    key = dg.AssetKey(["read_models", rollup.of.name])
    return dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(key, source) for source in rollup.sources_of(name)]
            for name in rollup.public_columns()
        }
    )


def _fields(
    model: ReadModel, column: str, source: str, declared: Sequence[DeclaredEvent]
) -> Iterator[dg.TableColumnDep]:
    """Yield the declared fields of a source, each once for all versions of its event."""
    event_names = model.columns[column].events if column in model.columns else None
    name = source.removeprefix("data.").split(".", maxsplit=1)[0]
    found = {
        (event.decider, field): None
        for event in declared
        if source.startswith("data.") and (event_names is None or event.event in event_names)
        if (field := f"{event.event}.{name}") in field_columns(event)
    }
    for decider, field in found:
        yield dg.TableColumnDep(asset_key(decider), field)


def _looked_up(model: ReadModel, column: str) -> Iterator[dg.TableColumnDep]:
    if column in model.lookups:
        found = model.lookups[column]
        yield dg.TableColumnDep(dg.AssetKey(["read_models", found.model]), found.column)


def _deps(model: ReadModel, source: str, captures: Iterable[Capture]) -> Iterator[dg.TableColumnDep]:
    yield dg.TableColumnDep(EVENTS, source)
    if not source.startswith(RECORD):
        return
    for capture in captures:
        for table in capture.tables:
            if table.stream_decider in (model.deciders or ()):
                yield dg.TableColumnDep(
                    dg.AssetKey([capture.name, table.schema, table.table]),
                    source.removeprefix(RECORD).split(".", maxsplit=1)[0],
                )
