"""The connection to a source, facts about any source, and the timelines of its log."""

import pytest

from millrace.capture.decoding.pgoutput import Lsn
from millrace.capture.source.connection import connect_source, flush_lsn, next_xid, source_identity
from millrace.capture.source.timelines import Timelines
from millrace.errors import Unreachable
from tests.support.capturing.sources import Source
from tests.support.factories import value


def test_a_source_that_does_not_answer_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="does not answer") as refused:
        connect_source("postgresql://nobody@/nothing?host=/nowhere")
    assert refused.value.detail
    assert refused.value.hint


def test_the_session_s_text_form_is_fixed_whatever_the_database_says(source: Source) -> None:
    source.run(f"""
        alter database {source.slot} set datestyle = 'German';
        alter database {source.slot} set intervalstyle = 'iso_8601';
        alter database {source.slot} set timezone = 'Asia/Tokyo';
        alter database {source.slot} set extra_float_digits = -10;
        alter database {source.slot} set bytea_output = 'escape'
        """)
    with connect_source(source.dsn) as connection:
        assert connection.autocommit
        found = connection.execute(
            "select '2024-02-29 12:00+00'::timestamptz::text, '1 day'::interval::text, (0.1::float8 + 0.2)::text, '\\xff'::bytea::text"
        ).fetchone()
    assert found == ("2024-02-29 12:00:00+00", "1 day", "0.30000000000000004", "\\xff")


def test_a_role_without_rights_can_ask_which_source_it_is(source: Source) -> None:
    source.run("create role plain")
    try:
        source.run("set role plain")
        identity = source_identity(source.connection)
        assert (identity.database, identity.timeline) == (source.slot, 1)
        assert int(identity.system_identifier) > 0
        flush_lsn(source.connection)
    finally:
        source.run("reset role", "drop role plain")


def test_the_log_s_position_and_time_and_the_next_id_rise(source: Source) -> None:
    before, xid = flush_lsn(source.connection), next_xid(source.connection)
    source.run("create table t (id int)")
    after = flush_lsn(source.connection)
    assert (before[0] < after[0], before[1] < after[1], after[1].tzinfo is not None) == (True, True, True)
    assert next_xid(source.connection) > xid
    assert xid == value(source.connection, "select xmin::text::int from pg_class where relname = 't'")


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("1", "1", None), ("1 0/10, 2", "1 0/10, 2", None), ("1", "1 0/10, 2", "0/10"),
        ("1", "1 0/10, 2 0/20, 3", "0/10"), ("1 0/10, 2", "1 0/10, 2 0/20, 3", "0/20"),
        # both servers were promoted independently
        ("1 0/10, 2", "1 0/18, 2", "0/10"), ("1 0/10, 2", "1 0/10, 3", "0/10"),
        ("1 0/10, 2 0/20, 4", "1 0/10, 3 0/30, 4", "0/10"),
        # histories without a common beginning
        ("2", "3", "0/0"),
    ],
)  # fmt: skip
def test_two_logs_are_one_up_to_where_one_went_another_way(one: str, other: str, common: str | None) -> None:
    for a, b in ((one, other), (other, one)):
        found = Timelines.parse(a).common(Timelines.parse(b))
        assert found == (None if common is None else Lsn.parse(common))
        assert str(Timelines.parse(a)) == a


def test_no_limit_that_is_meant_for_applications_ends_what_a_capture_does(source: Source) -> None:
    theirs = {
        "statement_timeout": "1s", "lock_timeout": "1", "idle_session_timeout": "1s",
        "idle_in_transaction_session_timeout": "1", "default_transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
    }  # fmt: skip
    if source.connection.info.server_version >= 170000:
        theirs["transaction_timeout"] = "1s"
    for name, setting in theirs.items():
        source.run(f"alter database {source.slot} set {name} = '{setting}'")
    with connect_source(source.dsn) as connection:
        found = {name: value(connection, f"show {name}") for name in theirs}
        connection.execute("create table t ()")
    assert [name for name, setting in theirs.items() if found[name] in {setting, f"{setting}ms"}] == []
