"""The connection to a source, and what any source can be asked. Not here: its slots (test_slot)."""

import pytest

from millrace.resources.capture.source.connection import connect_source, flush_lsn, next_xid, source_identity
from millrace.resources.errors import Unreachable
from tests.support.capturing.sources import Source, new_source, source
from tests.support.factories import value

__all__ = ["new_source", "source"]


def test_a_source_that_does_not_answer_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="does not answer") as refused:
        connect_source("postgresql://nobody@/nothing?host=/nowhere")
    assert refused.value.detail
    assert refused.value.hint


def test_the_session_s_text_form_is_fixed_whatever_the_database_says(source: Source) -> None:
    source.connection.execute(
        f"""
        alter database {source.slot} set datestyle = 'German';
        alter database {source.slot} set intervalstyle = 'iso_8601';
        alter database {source.slot} set timezone = 'Asia/Tokyo';
        alter database {source.slot} set extra_float_digits = -10;
        alter database {source.slot} set bytea_output = 'escape'
        """.encode()
    )
    with connect_source(source.dsn) as connection:
        assert connection.autocommit
        found = connection.execute(
            "select '2024-02-29 12:00+00'::timestamptz::text, '1 day'::interval::text, (0.1::float8 + 0.2)::text, '\\xff'::bytea::text"
        ).fetchone()
    assert found == ("2024-02-29 12:00:00+00", "1 day", "0.30000000000000004", "\\xff")


def test_a_database_is_told_from_others(source: Source) -> None:
    identity = source_identity(source.connection)
    assert (identity.database, identity.timeline) == (source.slot, 1)
    assert int(identity.system_identifier) > 0


def test_a_role_without_rights_can_ask_which_source_it_is(source: Source) -> None:
    source.run("create role plain")
    try:
        source.run("set role plain")
        assert source_identity(source.connection).database == source.slot
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
