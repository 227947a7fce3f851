"""The tables of read models as Dagster's pages show them: their rows, their bytes, their indexes."""

from typing import Any
from urllib.parse import quote

import psycopg

from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.stored.indexes import given_up, index_name, stored_indexes
from millrace.read_models.stored.tables import rows_and_bytes


def table_metadata(connection: psycopg.Connection, model: ReadModel) -> dict[str, Any]:
    """Return the metadata of a table for the page of its version of a read model."""
    rows, size = rows_and_bytes(connection, model)
    missing = missing_indexes(connection, model)
    declared = [f"{one} ({missing[str(one)]})" if str(one) in missing else str(one) for one in model.indexes]
    others = [
        f"{one.definition} ({one.name}, made by hand)"
        for one in stored_indexes(connection, model)
        if not one.is_declared
    ]
    server = connection.info
    return {
        "dagster/row_count": rows,
        "dagster/table_name": f"{server.dbname}.read_models.{model.name}",
        "dagster/uri": f"postgresql://{quote(server.host, safe='')}:{server.port}/{quote(server.dbname)}",
        "bytes": size,
        "indexes": [", ".join(model.keys), *declared, *others],
    }


def missing_indexes(connection: psycopg.Connection, model: ReadModel) -> dict[str, str]:
    """Return the missing declared indexes of a version, each with the reason."""
    stored = {one.name: one.valid for one in stored_indexes(connection, model)}
    too_long = given_up(connection, model)
    return {
        str(one): "left out: a value is too long for it"
        if name in too_long
        else "being made"
        if name in stored
        else "not made yet"
        for one in model.indexes
        if not stored.get(name := index_name(model, one))
    }
