"""The columns of captured tables along the log: those of a table at each change, and where they changed.

Not here: how they are stored (`capture.schema_changes`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from millrace.capture.decoding.pgoutput import Lsn, Relation, Type

_IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "index"}
_NUMERIC, _CHARACTERS = 1700, (1042, 1043)


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A column; `type` is for readers only, `key` says whether it belongs to the replica identity."""

    name: str
    type_oid: int
    type_modifier: int
    type: str = field(compare=False)
    key: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a table and its replica identity."""

    identity: str
    columns: tuple[SchemaColumn, ...]

    @classmethod
    def of(cls, relation: Relation, types: Mapping[int, str]) -> Self:
        """Return the schema of a description; `types` has the names of types."""
        columns = []
        for c in relation.columns:
            name, modifier = types.get(c.type_oid, f"type {c.type_oid}"), c.type_modifier
            if c.type_oid == _NUMERIC and modifier >= 4:
                # the scale has 11 bits, the highest of them its sign
                scale = ((modifier - 4) & 0x7FF ^ 0x400) - 0x400
                name += f"({modifier - 4 >> 16},{scale})"
            if c.type_oid in _CHARACTERS and modifier >= 4:
                name += f"({modifier - 4})"
            columns.append(SchemaColumn(c.name, c.type_oid, modifier, name, c.is_key))
        return cls(_IDENTITIES[relation.identity], tuple(columns))

    def as_json(self) -> dict[str, Any]:
        """Return its JSON form."""
        return {
            "identity": self.identity,
            "columns": [
                {
                    "name": c.name,
                    "type_oid": c.type_oid,
                    "type_modifier": c.type_modifier,
                    "type": c.type,
                    "key": c.key,
                }
                for c in self.columns
            ],
        }


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place between two changes: before the change that has this index in its transaction."""

    generation: int
    commit_lsn: Lsn
    commit_idx: int


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's schema from a position on."""

    schema_name: str
    table_name: str
    at: Position
    schema: Schema

    @classmethod
    def from_stored(cls, schema_name: str, table_name: str, stored: Mapping[str, Any]) -> Self:
        """Return a schema from its form in the store."""
        at = Position(stored["generation"], Lsn.parse(stored["lsn"]), stored["idx"])
        columns = tuple(SchemaColumn(**column) for column in stored["columns"])
        return cls(schema_name, table_name, at, Schema(stored["identity"], columns))


class Schemas:
    """The schemas of a capture's tables: those that are stored, and those that the log brings.

    A position that the slot gives again has the same schema before it as the first time, whatever came since.

    Args:
        stored: The stored schemas, each table's in the order of positions.
        generation: The generation of the slot.
        types: The names of the built-in types.
    """

    def __init__(self, stored: Iterable[TableSchema], generation: int, types: Mapping[int, str]) -> None:
        self._generation = generation
        self._by_table: dict[tuple[str, str], list[TableSchema]] = {}
        for each in stored:
            self._by_table.setdefault((each.schema_name, each.table_name), []).append(each)
        self._types = dict(types)
        # those that are to be stored
        self._new: list[TableSchema] = []

    def add_type(self, message: Type) -> None:
        """Remember the name of a type that is not built in."""
        self._types[message.type_oid] = f"{message.schema}.{message.name}"

    def add_relation(self, relation: Relation, lsn: Lsn, idx: int, stored_lsn: Lsn) -> tuple[Schema, Schema] | None:
        """Take a table's description before a change; return the schema before and this one if they differ.

        The first description of a table without a stored schema is not a change.
        """
        at = Position(self._generation, lsn, idx)
        schemas = self._by_table.setdefault((relation.schema, relation.table), [])
        previous = next((each.schema for each in reversed(schemas) if each.at < at), None)
        current = Schema.of(relation, self._types)
        if current == previous:
            return None
        # What is stored was added before. If it has no schema here, an older version of this program has stored it.
        if lsn >= stored_lsn and all(each.at != at for each in schemas):
            added = TableSchema(relation.schema, relation.table, at, current)
            schemas.append(added)
            self._new.append(added)
        return None if previous is None else (previous, current)

    def take_new(self) -> list[TableSchema]:
        """Return the schemas added since the last call, to be stored."""
        added, self._new = self._new, []
        return added


def changed_body(before: Schema, after: Schema) -> str:
    """Write the beginning of the data of `schema_changed`."""
    texts = [json.dumps(schema.as_json(), ensure_ascii=False) for schema in (before, after)]
    return f'{{"record": null, "old": {texts[0]}, "new": {texts[1]}'
