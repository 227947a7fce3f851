"""The lineage of columns as Dagster shows it: from captured tables and events to read models."""

from collections.abc import Iterable

import dagster as dg

from millrace.assets.events import asset_key, field_columns, taken
from millrace.resources.capture.declaration import Capture
from millrace.resources.events.model import DeclaredEvent
from millrace.resources.read_models.declared.declaration import ReadModel
from millrace.resources.read_models.declared.rollups import Rollup
from millrace.resources.read_models.shown.lineage import origins

EVENTS = dg.AssetKey(["event_store", "events"])
RECORD = "data.record."
COLUMN_LINEAGE = "dagster/column_lineage"


def column_schema(model: ReadModel) -> dg.TableSchema:
    """Return the columns of a read model with their types, each described by what it is computed from."""
    said = {origin.column: origin.said for origin in origins(model)}
    return dg.TableSchema([dg.TableColumn(name, type_, said[name]) for name, type_ in model.public_columns().items()])


def column_lineage(
    model: ReadModel, captures: Iterable[Capture] = (), events: Iterable[DeclaredEvent] = ()
) -> dg.TableColumnLineage:
    """Return the fields of events that each column is computed from, and behind them the captured columns."""
    tables = [(one.name, table) for one in captures for table in one.tables]
    captured = [(name, table) for name, table in tables if table.stream_decider in (model.deciders or ())]
    declared = taken(model, events)
    lineage: dict[str, list[dg.TableColumnDep]] = {}
    for origin in origins(model):
        deps = lineage[origin.column] = []
        wanted = model.columns[origin.column].events if origin.column in model.columns else None
        for source in origin.sources:
            deps.append(dg.TableColumnDep(EVENTS, source))
            if source.startswith(RECORD):
                column = source.removeprefix(RECORD).split(".", maxsplit=1)[0]
                keys = [dg.AssetKey([name, table.schema, table.table]) for name, table in captured]
                deps += [dg.TableColumnDep(key, column) for key in keys]
            if source.startswith("data."):
                name = source.removeprefix("data.").split(".", maxsplit=1)[0]
                read = [event for event in declared if wanted is None or event.event in wanted]
                fields = [(event, f"{event.event}.{name}") for event in read]
                # each once for all versions of its event
                found = dict.fromkeys((one.decider, field) for one, field in fields if field in field_columns(one))
                deps += [dg.TableColumnDep(asset_key(decider), field) for decider, field in found]
        if origin.column in model.lookups:
            looked_up = model.lookups[origin.column]
            deps.append(dg.TableColumnDep(dg.AssetKey(["read_models", looked_up.model]), looked_up.column))
    return dg.TableColumnLineage(lineage)


def rollup_lineage(rollup: Rollup) -> dg.TableColumnLineage:
    """Return the columns of its read model that each column is computed from."""
    key = dg.AssetKey(["read_models", rollup.of.name])
    return dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(key, source) for source in rollup.sources_of(name)]
            for name in rollup.public_columns()
        }
    )
