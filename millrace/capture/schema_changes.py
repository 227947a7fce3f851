"""The columns of captured tables in the store: those that the log described, and those in the source's catalog now."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import psycopg
from psycopg.postgres import types
from psycopg.types.json import Jsonb

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.decoding.schemas import Schema, TableSchema
from millrace.capture.source.tables import SourceTable, enum_labels, filled_leaves
from millrace.capture.store import CaptureLease, CaptureStore, RegisteredTable
from millrace.event_store.sql_functions import SqlFunctions

if TYPE_CHECKING:
    from millrace.capture.decide import Admitted

# the names of the built-in types
TYPES = {info.oid: info.regtype for info in types} | {
    info.array_oid: f"{info.regtype}[]" for info in types if info.array_oid
}
_FIRST_OWN_TYPE = 16384


class SchemaStore(SqlFunctions):
    """The store's functions for the columns of captured tables."""

    def keep_schemas(
        self, capture: str, lease_token: int, read_lsn: Lsn, schemas: Sequence[Mapping[str, object]]
    ) -> int:
        """Store the columns of tables; return how many tables are to be read anew, after `publish_tables`."""
        return self._value(
            int,
            "select event_store_platform.keep_schemas(%s, %s, %s::pg_lsn, %s)",
            (capture, lease_token, str(read_lsn), Jsonb(schemas)),
        )

    def captured_schemas(self, capture: str) -> list[TableSchema]:
        """Return the columns that the tables of a capture had, those of each table in the order of the log."""
        found = self.connection.execute(
            "select schema_name, table_name, schemas from event_store_platform.captured_tables(%s)", (capture,)
        )
        return [TableSchema.from_stored(schema, table, each) for schema, table, stored in found for each in stored]


def schema_now(found: SourceTable, table: CapturedTable) -> Schema:
    """Return the columns of a table as the log would describe them now."""
    own_types = {c.type_oid: c.type_name for c in found.columns if c.type_oid >= _FIRST_OWN_TYPE}
    return Schema.of(found.relation(table), TYPES | own_types)


def update_schemas(
    source: psycopg.Connection, store: CaptureStore, lease: CaptureLease, admitted: "Admitted"
) -> list[RegisteredTable]:
    """Have tables read anew if columns changed without a row change that shows it, or if partitions or enums changed.

    Return all tables of the capture as they are then registered.
    """
    registered = store.captured_tables(lease.capture)
    registered_leaves = {(table.schema_name, table.table_name): table.leaves for table in registered}
    leaf_sets = [(each.oids[1:], registered_leaves[each.table.schema, each.table.table]) for each in admitted.tables]
    added = [leaf for leaves, before in leaf_sets if before is not None for leaf in {*leaves} - {*before}]
    filled = filled_leaves(source, sorted(added))
    labels = enum_labels(source, [each.oids[0] for each in admitted.tables])
    schemas = [
        {
            "schema": each.table.schema,
            "table": each.table.table,
            **each.schema.as_json(),
            "leaves": each.oids[1:],
            "filled": sorted(filled.intersection(each.oids[1:])),
            "labels": labels.get(each.oids[0], {}),
        }
        for each in admitted.tables
    ]
    rereads = SchemaStore(store.connection).keep_schemas(lease.capture, lease.lease_token, admitted.read_lsn, schemas)
    return store.captured_tables(lease.capture) if rereads else registered


def schemas_json(schemas: Iterable[TableSchema]) -> list[dict[str, object]]:
    """Return schemas from the log as `keep_schemas` takes them."""
    return [
        {
            "schema": each.schema_name,
            "table": each.table_name,
            **each.schema.as_json(),
            "commit_lsn": str(each.at.commit_lsn),
            "commit_idx": each.at.commit_idx,
        }
        for each in schemas
    ]
