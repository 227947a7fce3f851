"""The commands for operators of views: their output and their effects."""

import psycopg
import pytest

from millrace.errors import BelongsToReadModel, MillraceError, PositionOutOfRange, UnknownView, ViewInUse
from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from tests.platform_defs.cli.conftest import Typed
from tests.support.command_line import cells, millrace, parsed
from tests.support.factories import give_to_read_model, rows
from tests.support.sql_calls import get_events


def audited(view: PlatformStore) -> list[tuple[object, ...]]:
    return rows(
        view.connection,
        "select operation, view, reason from event_store.audit_log where operation <> 'register_view' order by audit_id",
    )


def park(view: PlatformStore, decider_id: str) -> None:
    (event,) = (event for event in view.stream_events("v", 10) if event.decider_id == decider_id)
    view.fail_event("v", decider_id, event.offset, "no such customer")


def test_a_dead_letter_is_listed_retried_and_discarded(view: PlatformStore, dsn: str) -> None:
    assert "no dead letters" in millrace("dead", "list", dsn=dsn)
    park(view, "a")
    listed = millrace("dead", "list", "v", dsn=dsn)
    assert all(word in listed for word in ("order", "a", "placed", "no such customer"))
    retry = ("dead", "retry", "v", "--decider", "order", "--id", "a", "--reason", "the customer exists now")
    assert "1 streams of v" in millrace(*retry, dsn=dsn)
    assert "no dead letters" in millrace("dead", "list", "v", dsn=dsn)

    park(view, "a")
    assert "offset 1" in millrace("dead", "drop", "v", "order", "a", "--reason", "a test", dsn=dsn)
    assert [event.offset for event in view.stream_events("v", 10)] == [2]
    assert audited(view) == [
        ("retry_dead_letters", "v", "the customer exists now"),
        ("discard_dead_letter", "v", "a test"),
    ]


def test_locks_of_a_consumer_that_hangs_are_ended(view: PlatformStore, dsn: str) -> None:
    assert len(view.stream_events("v", 10)) == 2
    assert view.stream_events("v", 10) == []
    assert "1 locks of v" in millrace("view", "unlock", "v", "order", "a", "--reason", "it hangs", dsn=dsn)
    assert [event.decider_id for event in view.stream_events("v", 10)] == ["a"]
    assert "2 locks of v" in millrace("view", "unlock", "v", dsn=dsn)
    assert "0 locks of v" in millrace("view", "unlock", "v", "order", "no such stream", dsn=dsn)
    assert len(view.stream_events("v", 10)) == 2
    assert audited(view) == [("end_locks", "v", "it hangs"), ("end_locks", "v", None)]


def test_a_view_is_sought_or_it_is_said_what_is_possible(view: PlatformStore, dsn: str) -> None:
    def seek(*words: str, code: int = 0) -> str:
        return millrace("view", "seek", "v", *words, dsn=dsn, code=code)

    def positions() -> list[tuple[int, int]]:
        return rows(view.connection, "select partition, position from event_store.checkpoints order by 1")

    before = positions()
    assert "dry run" in seek("reset_to_earliest", "--dry-run")
    assert positions() == before
    assert "dry run" not in seek("RESET_TO_EARLIEST", "--reason", "again")
    assert {position for _, position in positions()} == {0}
    seek("RESET_TO_LATEST")
    # in UTC
    seek("EXACT_TIMESTAMP", "--timestamp", "2000-01-01T00:00:00")
    assert {position for _, position in positions()} == {0}
    with pytest.raises(PositionOutOfRange, match="high-water mark"):
        seek("EXACT_OFFSET", "--partition", "0", "--position", "99")
    assert "RESET_TO_EARLIEST" in seek("SOMEWHERE", code=2).upper()


def test_the_name_of_a_read_model_stands_for_the_views_of_its_versions(view: PlatformStore, dsn: str) -> None:
    # as when a changed declaration serves: the view of the first version is gone
    view.register_view("m_v2", "-infinity", mode="bulk")
    give_to_read_model(view.connection, "m_v2")
    for command, enabled in (("disable", False), ("enable", True)):
        millrace("view", command, "m", "--reason", "a test", dsn=dsn)
        assert {poll.view: poll.enabled for poll in view.poll_views()} == {"v": True, "m_v2": enabled}
    # the name means the view that has exactly this name
    view.register_view("m", "-infinity")
    millrace("view", "disable", "m", dsn=dsn)
    assert {poll.view: poll.enabled for poll in view.poll_views()} == {"v": True, "m_v2": True, "m": False}


def test_a_view_is_disabled_and_enabled_with_a_reason(view: PlatformStore, dsn: str) -> None:
    assert "millrace view enable v" in millrace("view", "disable", "v", "--reason", "its receiver moves", dsn=dsn)
    assert view.stream_events("v") == []
    assert "nothing was changed" in millrace("view", "disable", "v", "--reason", "again", dsn=dsn)
    assert "is given events" in millrace("view", "enable", "v", "--reason", "it moved", dsn=dsn)
    assert len(view.stream_events("v")) == 1
    assert "nothing was changed" in millrace("view", "enable", "v", dsn=dsn)
    assert audited(view) == [("enable_view", "v", "its receiver moves"), ("enable_view", "v", "it moved")]


def test_a_view_is_removed_when_somebody_says_yes(view: PlatformStore, dsn: str) -> None:
    park(view, "a")
    view.register_view("v", max_attempts=2)
    (b,) = get_events(view, "b", "order")
    view.fail_event("v", "b", b.offset, "not yet")
    for answer in ("n\n", ""):
        with pytest.raises(MillraceError, match=r"(?s)was not removed.*--yes"):
            millrace("view", "remove", "v", dsn=dsn, answer=answer)
    assert [info.view for info in view.view_info()] == ["v"]
    assert audited(view) == []

    asked = millrace("view", "remove", "v", "--reason", "replaced", dsn=dsn, answer="y\n")
    lost = ("progress (0 positions behind)", "1 streams that wait", "1 dead letters", "is removed")
    assert all(words in " ".join(asked.split()) for words in lost)
    assert view.view_info() == []
    assert audited(view) == [("unregister_view", "v", "replaced")]
    view.register_view("v")
    assert "?" not in millrace("view", "remove", "v", "--yes", dsn=dsn)
    assert view.view_info() == []


def test_what_cannot_be_removed_is_refused_before_anybody_is_asked(view: PlatformStore, dsn: str) -> None:
    view.stream_events("v")
    for name, error, said in (
        ("nobody", UnknownView, "view is not registered.*nobody"),
        ("v", ViewInUse, "in flight"),
        ("v", BelongsToReadModel, r"read model m\b.*millrace view reset m"),
    ):
        if error is BelongsToReadModel:
            give_to_read_model(view.connection, "v")
        for yes in ((), ("--yes",)):
            with pytest.raises(error, match=f"(?s){said}"):
                millrace("view", "remove", name, *yes, dsn=dsn)


def test_the_audit_log_is_listed_newest_first(view: PlatformStore, dsn: str) -> None:
    assert "greater than or equal to 1" in " ".join(millrace("show", "audit", "--limit", "0", code=2).split())
    view.register_view("w")
    view.enable_view("v", enabled=False, reason="a [bold] reason")
    view.enable_view("w", enabled=False)
    view.unregister_view("w", "replaced")
    user = view.connection.info.user

    assert [row[1:5] for row in cells(millrace("show", "audit", "--view", "v", dsn=dsn)) if row[1]] == [
        [user, "enable_view", "v", "a [bold] reason"],
        [user, "register_view", "v", ""],
    ]
    newest = millrace("show", "audit", "--limit", "2", dsn=dsn)
    operations = [row[2:5] for row in cells(newest) if row[2]]  # a long detail continues below
    assert operations == [["unregister_view", "w", "replaced"], ["enable_view", "w", ""]]
    assert '{"enabled": false}' in newest
    assert "unregister_view" in millrace("show", "audit", "--view", "w", dsn=dsn)
    (told, _) = parsed(millrace("show", "audit", "--view", "v", "--json", dsn=dsn))
    assert (told["done_by"], told["reason"], told["detail"]) == (user, "a [bold] reason", {"enabled": False})


def test_an_unknown_view_is_told(view: PlatformStore, dsn: str, typed: Typed) -> None:
    with pytest.raises(UnknownView) as unknown:
        view.view_info("no")
    text = " ".join(str(unknown.value).split())
    views = ("enable no", "disable no", "remove no --yes", "unlock no")
    for command in (*(f"view {each}" for each in views), "show audit --view no", "dead retry no", "dead list no"):
        code, _, said = typed(*command.split(), "--dsn", dsn)
        assert (code, " ".join(said.split())) == (1, text), command


def test_the_audit_log_may_be_empty_or_not_for_everybody(dsn: str, store: PlatformStore, typed: Typed) -> None:
    assert "Nothing was done" in millrace("show", "audit", dsn=dsn)
    user = "user_without_audit"
    store.connection.execute(f"create role {user} login in role event_store_consumer".encode())
    try:
        code, _, said = typed("show", "audit", "--dsn", psycopg.conninfo.make_conninfo(dsn, user=user))
    finally:
        store.connection.execute(f"drop role {user}".encode())
    assert (code, "who_may_do_what" in said) == (1, True)


def test_a_refusal_is_a_sentence(postgres: EmbeddedPostgres, typed: Typed) -> None:
    for dsn, why in (
        ("postgresql://127.0.0.1:1/nothing", "Postgres does not answer: connection failed"),
        (postgres.dsn("no_such_database"), 'database "no_such_database"'),
        (postgres.dsn("postgres"), "Is this an event store? Run: millrace migrate"),
    ):
        code, _, said = typed("status", "--dsn", dsn)
        assert (code, why in " ".join(said.split())) == (1, True), said


def test_a_view_whose_name_looks_like_markup_is_shown(view: PlatformStore, dsn: str) -> None:
    view.register_view("a[/b]")
    assert "a[/b]" in millrace("status", dsn=dsn)
    assert "a[/b]" in millrace("view", "seek", "a[/b]", "RESET_TO_LATEST", dsn=dsn)
    assert "a[/b]" in millrace("dead", "retry", "a[/b]", dsn=dsn)
