"""Wrong declarations: refused on their own, or by the source before anything is created."""

from typing import Any

import pytest

from millrace.capture.declaration import Capture, CapturedTable
from millrace.capture.drain import CaptureDrain
from millrace.capture.source.readiness import NotReady
from millrace.errors import InvalidCapture
from millrace.personal import Personal
from tests.support.capturing.captured import Captured


def test_a_filter_that_cannot_see_deletes_is_refused_at_first(captured: Captured) -> None:
    blind = Capture("shop", lambda: captured.source.dsn, (CapturedTable("items", where="amount > 10"),))
    with pytest.raises(NotReady, match="amount"), CaptureDrain(captured.dsn, blind, "test"):
        pass
    assert captured.source.connection.execute("select from pg_publication").fetchall() == []
    assert captured.rows("select from event_store.captures") == []


def test_tables_of_the_store_itself_are_never_captured(captured: Captured) -> None:
    own = Capture("own", lambda: captured.dsn, (CapturedTable("events", schema="event_store"),))
    with pytest.raises(NotReady, match="never captured"), CaptureDrain(captured.dsn, own, "test"):
        pass


A = CapturedTable("a")
CLICKS = CapturedTable("clicks", key=())
# tables and options, and the error
REFUSED: tuple[tuple[tuple[CapturedTable, ...], dict[str, Any], str], ...] = (
    ((), {}, "it has no table"), ((A, A), {}, "declared twice"),
    ((A,), {"actions": ("insert", "upsert")}, "not upsert"), ((A,), {"actions": ()}, "no action"),
    ((CapturedTable("a", decider="x"), CapturedTable("b", decider="x")), {}, "decider x is declared twice"),
    ((CLICKS,), {}, r"public.clicks: key=\(\) .* row's delete or update"),
    ((CLICKS,), {"actions": ("insert", "update")}, "row's update concerns"),
    ((A,), {"patterns": "public.*"}, "are tuples"),
    ((A,), {"patterns": ("public.*",), "exclude": "public.*"}, "are tuples"),
    ((A,), {"patterns": ("items",)}, r"pattern items has no schema: write such as public\.\*"),
    ((A,), {"patterns": ("public.*",), "exclude": ("items",)}, "pattern items has no schema"),
    ((A,), {"exclude": ("public.a*",)}, "exclude is stated with patterns"),
    ((), {"patterns": (), "exclude": ()}, "no table, and no pattern"),
)  # fmt: skip
# options of a table
REFUSED_OF_TABLES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"columns": ()}, "not empty"),
    ({"mask": "iban"}, "tuples of columns"),
    ({"hash": "iban", "hash_key": str}, "tuples of columns"),
    ({"mask": ("a",), "hash": ("a",), "hash_key": str}, "a is stated twice"),
    ({"mask": ("a",), "key": ("a",)}, "a belongs to its key"),
    ({"mask": ("a",), "columns": ("id",)}, "columns leave out a"),
    ({"personal": {"a": "id"}, "mask": ("a",)}, "a is stated twice"),
    ({"personal": {"a": "id"}, "key": ("a",)}, "a belongs to its key"),
    ({"personal": {"a": "id"}, "columns": ("id",)}, "columns leave out a"),
    ({"personal": {"a": "b"}, "columns": ("id", "a")}, "columns leave out b"),
    ({"personal": {"a": "a"}}, "a says whose a personal column is"),
    ({"personal": {"a": "b", "b": "id"}}, "b says whose a personal column is"),
    ({"personal": {"a": "b"}, "mask": ("b",)}, "b says whose a personal column is"),
    ({"personal": {"a": Personal(of="b", kind="a kind")}}, "'a kind' is no kind of people"),
    ({"hash": ("a",)}, "hash and hash_key are stated together"),
    ({"hash_key": str}, "hash and hash_key are stated together"),
)


def test_a_declaration_that_cannot_work_is_refused() -> None:
    for tables, options, said in REFUSED:
        with pytest.raises(InvalidCapture, match=said):
            Capture("shop", str, tables, **options)
    for options, said in REFUSED_OF_TABLES:
        with pytest.raises(InvalidCapture, match=said):
            Capture("shop", str, (CapturedTable("t", **options),))
    with pytest.raises(InvalidCapture, match="a-z"):
        Capture("Shop 1", str, (A,))
