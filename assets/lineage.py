"""The lineage of columns as Dagster shows it: from captured tables and events to read models.

Belongs here: which asset a source of a column is in. Not here: what a declaration says
(`millrace.resources.read_models.shown.lineage`).
"""

from collections.abc import Iterable, Iterator

import dagster as dg

from millrace.resources.capture.declaration import Capture
from millrace.resources.read_models.declaration import ReadModel
from millrace.resources.read_models.shown.lineage import origins

EVENTS = dg.AssetKey(["event_store", "events"])
RECORD = "data.record."


def column_schema(model: ReadModel) -> dg.TableSchema:
    """Return the columns of a read model with their types, each described by what it is computed from."""
    said = {origin.column: origin.said for origin in origins(model)}
    return dg.TableSchema([dg.TableColumn(name, type_, said[name]) for name, type_ in model.public_columns().items()])


def column_lineage(model: ReadModel, captures: Iterable[Capture] = ()) -> dg.TableColumnLineage:
    """Return the fields of events that each column is computed from, and behind them the captured columns."""
    known = list(captures)
    return dg.TableColumnLineage(
        {
            origin.column: [dep for source in origin.sources for dep in _deps(model, source, known)]
            for origin in origins(model)
        }
    )


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
