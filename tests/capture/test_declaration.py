"""What a declaration refuses by itself, and what the source refuses of it before anything is made."""

from typing import Any

import pytest

from millrace.resources.capture.declaration import Capture, CapturedTable, InvalidCapture
from millrace.resources.capture.drain import CaptureDrain
from millrace.resources.capture.source.readiness import NotReady
from tests.support.capturing.captured import Captured, captured, new_source
from tests.support.factories import rows

__all__ = ["captured", "new_source"]


def test_a_filter_that_cannot_see_deletes_is_refused_before_anything_is_made(captured: Captured) -> None:
    blind = Capture("shop", lambda: captured.source.dsn, (CapturedTable("items", where="amount > 10"),))
    with pytest.raises(NotReady, match="amount"), CaptureDrain(captured.dsn, blind, "test"):
        pass
    assert captured.source.connection.execute("select from pg_publication").fetchall() == []
    assert rows(captured.store, "select from event_store.captures") == []


def test_tables_of_the_store_itself_are_never_captured(captured: Captured) -> None:
    own = Capture("own", lambda: captured.dsn, (CapturedTable("events", schema="event_store"),))
    with pytest.raises(NotReady, match="never captured"), CaptureDrain(captured.dsn, own, "test"):
        pass


@pytest.mark.parametrize(
    ("tables", "options", "said"),
    [
        ((), {}, "it has no table"),
        ((CapturedTable("a"), CapturedTable("a")), {}, "declared twice"),
        ((CapturedTable("a"),), {"actions": ("insert", "upsert")}, "not upsert"),
        ((CapturedTable("a"),), {"actions": ()}, "no action"),
        ((CapturedTable("a", columns=()),), {}, "not empty"),
        ((CapturedTable("a", decider="x"), CapturedTable("b", decider="x")), {}, "decider x is declared twice"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(
    tables: tuple[CapturedTable, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidCapture, match=said):
        Capture("shop", lambda: "", tables, **options)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidCapture, match="a-z"):
        Capture("Shop 1", lambda: "", (CapturedTable("a"),))
