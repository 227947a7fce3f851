"""The columns of tables along the log: a position gives the same columns every time it is read."""

from millrace.capture.decoding.pgoutput import Lsn, Relation, RelationColumn
from millrace.capture.decoding.schemas import Position, Schema, Schemas, TableSchema

STORED = Lsn(100)


def described(*names: str) -> Relation:
    return Relation(1, "public", "t", "d", tuple(RelationColumn(name, 23, -1, name == "id") for name in names))


def schema(*names: str) -> Schema:
    return Schema.of(described(*names), {23: "integer"})


def kept(generation: int, lsn: int, *names: str) -> TableSchema:
    return TableSchema("public", "t", Position(generation, Lsn(lsn), 0), schema(*names))


def test_other_columns_are_told_and_kept_once() -> None:
    schemas = Schemas([kept(1, 50, "id")], 2, {23: "integer"})
    assert schemas.add_relation(described("id"), STORED, 0, STORED) is None
    assert schemas.add_relation(described("id", "a"), STORED, 3, STORED) == (schema("id"), schema("id", "a"))
    assert schemas.add_relation(described("id", "a"), STORED, 4, STORED) is None
    assert [(each.at.commit_idx, each.schema) for each in schemas.take_new()] == [(3, schema("id", "a"))]
    assert schemas.take_new() == []


def test_what_is_stored_is_told_again_and_not_kept_again() -> None:
    schemas = Schemas([kept(1, 50, "id"), kept(1, 60, "id", "a"), kept(1, 70, "a")], 1, {})
    assert schemas.add_relation(described("id"), Lsn(60), 0, STORED) is None
    assert schemas.add_relation(described("id", "a"), Lsn(60), 0, STORED) == (schema("id"), schema("id", "a"))
    assert schemas.add_relation(described("id", "a"), Lsn(70), 0, STORED) is None
    assert schemas.take_new() == []


def test_the_first_that_is_met_of_a_table_tells_nothing_and_is_kept() -> None:
    schemas = Schemas([], 1, {})
    # stored by an older version of this program
    assert schemas.add_relation(described("id"), Lsn(99), 0, STORED) is None
    assert schemas.take_new() == []
    for _ in range(2):
        assert schemas.add_relation(described("id", "a"), STORED, 0, STORED) is None
    assert len(schemas.take_new()) == 1
    assert schemas.add_relation(described("id"), STORED, 1, STORED) == (schema("id", "a"), schema("id"))
