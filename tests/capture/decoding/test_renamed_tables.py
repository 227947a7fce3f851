"""Captured tables that change under an undeclared name, or have another key for a while."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.changed_rows import TableUnfit
from millrace.capture.decoding.changes import ChangeDecoder, TableRenamed
from millrace.capture.decoding.declared_names import DeclaredName
from millrace.capture.decoding.pgoutput import Lsn, Truncate
from millrace.capture.decoding.schemas import Schemas
from tests.support.capturing.decoded_changes import T, data, decoder
from tests.support.capturing.pgoutput_bytes import INT4, TABLE, TEXT, begin, commit, encode, insert, relation

RENAMED = relation(("id", INT4), ("note", TEXT), table="u")
# the table has its declared name again at LSN 300
PUT_BACK = {TABLE: DeclaredName("public.t", found_at=Lsn(300))}

T_AND_U = [CapturedTable("t"), CapturedTable("u")]
KEYED = CapturedTable("t", key=("id",))
TABLES = (CapturedTable("t"),)
Fed = tuple[ChangeDecoder, list[Change]]


def fed(
    names: dict[int, DeclaredName], *messages: bytes, tables: Sequence[CapturedTable] = (CapturedTable("t"),)
) -> Fed:
    """Feed messages to a decoder of tables with these names; return the decoder and the changes."""
    to_changes = ChangeDecoder(tables, "shop", 3, 1000, names)
    return to_changes, [change for message in messages for change in to_changes.feed(message)]


@pytest.mark.parametrize("raw", [insert(b"7", b"a"), encode(Truncate((TABLE,), False, False)), b"I\0\0@\x10"])
def test_a_table_that_changes_under_an_undeclared_name_is_refused(raw: bytes) -> None:
    since = {TABLE: DeclaredName("public.t", since=Lsn(200))}
    # the coming backfill will see these changes
    to_changes, changes = fed(since, begin(199), encode(RENAMED), raw, commit(199))
    assert changes == []
    to_changes.feed(begin(200))
    with pytest.raises(TableRenamed, match=r"(?s)public\.t .*public\.u.*by its new name.*The next run"):
        to_changes.feed(raw)


def test_a_renamed_table_is_refused_only_for_what_it_did_meanwhile() -> None:
    names = {TABLE: DeclaredName("public.t")}
    _, (change,) = fed(names, begin(), encode(RENAMED), encode(T), insert(b"7", b"a"))
    assert change.decider_id == "[7]"


@pytest.mark.parametrize(
    ("raw", "action"), [(insert(b"7", b"a"), "inserted"), (encode(Truncate((TABLE,), False, False)), "truncated")]
)
def test_what_a_table_did_before_it_had_its_name_again_is_its_own(raw: bytes, action: str) -> None:
    to_changes, changes = fed(PUT_BACK, begin(100), encode(RENAMED), raw, commit(100), begin(299), raw)
    assert [(c.commit_lsn, c.decider, c.action) for c in changes] == [
        (100, "table:public.t", action),
        (299, "table:public.t", action),
    ]
    assert [data(c)["source"]["table"] for c in changes] == ["t", "t"]
    to_changes.feed(commit(299))
    # a transaction without a rename brings no new description
    to_changes.feed(begin(300))
    with pytest.raises(TableRenamed, match=r"(?s)public\.t .*public\.u"):
        to_changes.feed(raw)


def test_columns_under_another_name_are_compared_with_its_own() -> None:
    to_changes = ChangeDecoder([CapturedTable("t")], "shop", 3, 1000, PUT_BACK, Schemas([], 3, {}))
    for message in (begin(100), encode(T), insert(b"7", b"a"), encode(RENAMED), insert(b"8", b"a"), commit(100)):
        assert all(change.action == "inserted" for change in to_changes.feed(message))
    to_changes.feed(begin(200))
    (change,) = to_changes.feed(encode(relation(("id", INT4), ("more", TEXT), table="u")))
    assert (change.decider, change.action) == ("table:public.t", "schema_changed")


def test_what_cannot_be_decoded_under_another_name_can_be_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("millrace.capture.decoding.changes.MAX_DATA_CHARACTERS", 10)
        _, (faulty,) = fed(PUT_BACK, begin(100), encode(RENAMED), insert(b"7", b"a"))
    assert faulty.fault
    restored = decoder().restore(faulty)
    assert data(restored)["record"] == {"id": 7, "note": "a"}
    assert replace(restored, data=None, raw=faulty.raw, relation=faulty.relation, fault=faulty.fault) == faulty


def test_a_table_that_had_the_name_of_another_keeps_its_changes() -> None:
    declared = {
        TABLE: DeclaredName("public.t", found_at=Lsn(300)),
        TABLE + 1: DeclaredName("public.u", found_at=Lsn(300)),
    }
    to_changes, (change,) = fed(declared, begin(100), encode(RENAMED), insert(b"7", b"a"), tables=T_AND_U)
    assert change.decider == "table:public.t"
    for message in (commit(100), begin(300)):
        to_changes.feed(message)
    # the rows can be identified only after the catalog is read again
    with pytest.raises(TableRenamed, match=r"(?s)public\.t .*public\.u"):
        to_changes.feed(insert(b"7", b"a"))


def test_a_table_that_had_another_s_name_before_was_that_one() -> None:
    declared = {
        TABLE: DeclaredName("public.t", since=Lsn(200), found_at=Lsn(200)),
        TABLE + 1: DeclaredName("public.u", since=Lsn(200), found_at=Lsn(200)),
    }
    _, (change,) = fed(declared, begin(100), encode(RENAMED), insert(b"7", b"a"), tables=T_AND_U)
    assert change.decider == "table:public.u"


def test_under_another_name_other_key_columns_are_refused_as_ever() -> None:
    other = encode(relation(("id", INT4), ("note", TEXT), table="u", key=("note",)))
    to_changes, _ = fed(PUT_BACK, begin(100), other, tables=[KEYED])
    with pytest.raises(TableUnfit):
        to_changes.feed(insert(b"7", b"a"))


def test_rows_that_other_columns_name_are_refused_until_the_key_does_again() -> None:
    since = {TABLE: DeclaredName("public.t", since=Lsn(200))}
    other = relation(("id", INT4), ("note", TEXT), key=("note",))
    # the coming backfill will see these changes
    seen = (begin(199), encode(other), insert(b"7", b"a"), commit(199))
    to_changes, changes = fed(since, *seen, tables=[KEYED])
    assert changes == []
    for message in (begin(200), encode(other), encode(relation(("id", INT4), ("note", TEXT)))):
        to_changes.feed(message)
    (change,) = to_changes.feed(insert(b"7", b"a"))
    assert change.decider_id == "[7]"
    to_changes.feed(encode(other))
    with pytest.raises(
        TableUnfit, match=r"(?s)public\.t .*note name its rows; as it was looked at, id did.*The next run"
    ):
        to_changes.feed(insert(b"8", b"b"))


@pytest.mark.parametrize(("stored", "refused"), [(0, True), (201, False)])
def test_a_filtered_table_is_looked_at_anew_once_columns_have_other_names(stored: int, refused: bool) -> None:
    filtered, names = CapturedTable("t", where="note <> ''"), {TABLE: DeclaredName("public.t")}
    to_changes = ChangeDecoder([filtered], "shop", 3, 1000, names, Schemas([], 3, {}), Lsn(stored))
    more = relation(("id", INT4), ("note", TEXT), ("more", TEXT))
    for message in (begin(100), encode(T), commit(100), begin(150), encode(more), commit(150), begin(200)):
        to_changes.feed(message)
    other = encode(relation(("id", INT4), ("more", TEXT), ("note", TEXT)))
    with pytest.raises(TableUnfit, match="its where may name one") if refused else nullcontext():
        to_changes.feed(other)


def test_an_identity_without_columns_leaves_the_key_to_the_declaration() -> None:
    for identity in "fn":
        described = encode(relation(("id", INT4), ("note", TEXT), key=(), identity=identity))
        names = {TABLE: DeclaredName("public.t")}
        _, (change,) = fed(names, begin(), described, insert(b"7", b"a"), tables=[KEYED])
        assert change.decider_id == "[7]"
