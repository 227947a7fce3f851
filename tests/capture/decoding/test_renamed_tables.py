"""Captured tables that change under a name that is not declared, or whose rows other columns name for a while."""

import pytest

from millrace.resources.capture.declaration import CapturedTable
from millrace.resources.capture.decoding.changes import (
    ChangeDecoder,
    KeyChanged,
    TableRenamed,
)
from millrace.resources.capture.decoding.pgoutput import (
    Lsn,
    Truncate,
)
from tests.support.capturing.decoded_changes import T
from tests.support.capturing.pgoutput_bytes import (
    INT4,
    TABLE,
    TEXT,
    begin,
    commit,
    encode,
    insert,
    relation,
)


@pytest.mark.parametrize("raw", [insert(b"7", b"a"), encode(Truncate((TABLE,), False, False)), b"I\0\0@\x10"])
def test_a_captured_table_that_changes_under_a_name_that_is_not_declared_is_refused(raw: bytes) -> None:
    renamed = relation(("id", INT4), ("note", TEXT), table="u")
    to_changes = ChangeDecoder([CapturedTable("t")], "shop", 3, 1000, {TABLE: ("public.t", Lsn(200))})
    # what the backfill to come will see
    for message in (begin(199), encode(renamed), raw, commit(199)):
        assert list(to_changes.feed(message)) == []
    to_changes.feed(begin(200))
    with pytest.raises(TableRenamed, match=r"(?s)public\.t .*public\.u.*millrace capture restart shop"):
        to_changes.feed(raw)


def test_a_captured_table_that_is_renamed_and_has_its_name_again_is_refused_only_for_what_it_did_meanwhile() -> None:
    renamed = relation(("id", INT4), ("note", TEXT), table="u")
    to_changes = ChangeDecoder([CapturedTable("t")], "shop", 3, 1000, {TABLE: ("public.t", Lsn(0))})
    for message in (begin(), encode(renamed), encode(T)):
        assert list(to_changes.feed(message)) == []
    (change,) = to_changes.feed(insert(b"7", b"a"))
    assert change.decider_id == "[7]"


def test_rows_that_other_columns_name_than_the_key_are_refused_and_go_on_when_the_key_names_them_again() -> None:
    keyed = CapturedTable("t", key=("id",))
    to_changes = ChangeDecoder([keyed], "shop", 3, 1000, {TABLE: ("public.t", Lsn(200))})
    other = relation(("id", INT4), ("note", TEXT), key=("note",))
    # what the backfill to come will see
    fed = [to_changes.feed(message) for message in (begin(199), encode(other), insert(b"7", b"a"), commit(199))]
    assert [change.decider_id for changes in fed for change in changes] == ['["a"]']
    for message in (begin(200), encode(other), encode(relation(("id", INT4), ("note", TEXT)))):
        to_changes.feed(message)
    (change,) = to_changes.feed(insert(b"7", b"a"))
    assert change.decider_id == "[7]"
    to_changes.feed(encode(other))
    with pytest.raises(KeyChanged, match=r"(?s)public\.t .*millrace capture restart shop"):
        to_changes.feed(insert(b"8", b"b"))


def test_an_identity_that_names_no_columns_of_its_own_leaves_the_key_to_the_declaration() -> None:
    to_changes = ChangeDecoder([CapturedTable("t", key=("id",))], "shop", 3, 1000, {TABLE: ("public.t", Lsn(0))})
    for identity in "fn":
        described = relation(("id", INT4), ("note", TEXT), key=(), identity=identity)
        for message in (begin(), encode(described)):
            to_changes.feed(message)
        (change,) = to_changes.feed(insert(b"7", b"a"))
        assert change.decider_id == "[7]"
        to_changes.feed(commit())
