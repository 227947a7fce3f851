"""Columns that show another read model's row under a key: a join at each read of the row; nothing is stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from psycopg import sql

from millrace.read_models.declared.column_types import InvalidColumn


@dataclass(frozen=True)
class Lookup:
    """A column of another read model's row.

    Attributes:
        model: The other read model.
        on: The column of this row that is the key there.
        column: The column there.
        key: The name of the key there.
        key_type: The key's Postgres type.
        type: The column's Postgres type.
    """

    model: str
    on: str
    column: str
    key: str = field(repr=False)
    key_type: str = field(repr=False)
    type: str = field(repr=False)


def require_keys(lookups: Mapping[str, Lookup], types: Mapping[str, str]) -> None:
    """Refuse lookups by a name that is no column of the row, or by a column of another type than the key.

    Raises:
        InvalidColumn: It names both.
    """
    for name, one in lookups.items():
        if one.on not in types:
            raise InvalidColumn(f"lookup {name!r}: on is {one.on!r}, which is no column; there are {', '.join(types)}")
        if types[one.on] != one.key_type:
            raise InvalidColumn(
                f"lookup {name!r}: {one.on!r} is {types[one.on]}, and the key {one.key!r} of {one.model} is"
                f" {one.key_type}; declare them with one type"
            )


def with_lookups(query: sql.Composed, lookups: Mapping[str, Lookup]) -> sql.Composed:
    """Return the query of a view with the columns that its rows look up."""
    if not lookups:
        return query
    tables = {name: sql.Identifier(f"lookup {name}") for name in lookups}
    # its key is unique: the join probes that index; queries without the column skip it, but not of a recompute
    joins = [
        sql.SQL(" left join {} {table} on {table}.{} = own.{}").format(
            sql.Identifier("read_models", one.model),
            sql.Identifier(one.key),
            sql.Identifier(one.on),
            table=tables[name],
        )
        for name, one in lookups.items()
    ]
    looked_up = [
        sql.SQL("{}.{} as {}").format(tables[name], sql.Identifier(one.column), sql.Identifier(name))
        for name, one in lookups.items()
    ]
    return sql.SQL("select own.*, {} from ({}) own{}").format(
        sql.SQL(", ").join(looked_up), query, sql.SQL("").join(joins)
    )
