"""Arguments of all functions of the interface, over pg_proc: null, odd values, UUIDs, names, durations."""

from itertools import product
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from millrace.capture.store import CaptureStore
from millrace.event_store.platform import PlatformStore
from millrace.producers.store import ProducerStore
from tests.support.capturing.captures import Source
from tests.support.factories import append, pump, rows, set_clock

INTERFACE: LiteralString = "('event_store'::regnamespace, 'event_store_platform'::regnamespace)"
LOOK_UPS = {
    "capture_gaps", "cancel_scheduled_event", "captured_tables", "get_events", "get_last_event", "get_producer_state", "is_registered", "is_sequenced",
    "is_unused_version", "lease_owners", "log_position", "marks_at", "model_versions", "offsets_for_timestamp", "purged_discards",
    "open_keys", "readmit_subject", "release_owner", "retire_holder", "subject_events", "owned_leases", "locked_streams", "drain_states", "feed_place", "moved", "moved_value", "upcast",
    "quarantined_changes", "read_stream", "retried_events", "stream_head", "stream_partition", "stream_fault", "stream_state", "version_of_view",
    "waiting_timers", "open_stream_session", "revoke_stream_token", "use_stream_token",
}  # fmt: skip

# extreme values of a type, and values of a wrong shape
ODD = {
    "bigint": (str(-(2**63)), "-1", "0", str(2**63 - 1)),
    "integer": (str(-(2**31)), "-1", "0", str(2**31 - 1)),
    "text": ("", "x" * 20_000),
    "jsonb": ("null", "1", "1e400", '"x"', "[]", "{}", "[1]", "[[]]", "[null]", "[{}]", '{"a": {"b": [1]}}'),
    "timestamp with time zone": ("infinity", "-infinity", "294276-01-01", "4713-01-01 BC"),
    "text[]": ("{{a},{b}}", "{}", "{null}"),
    "integer[]": ("{{1},{2}}", "{}", "{null}", "{-1}", f"{{{2**31 - 1}}}"),
    "bigint[]": ("{{1},{2}}", "{}", "{null}", "{-1}", f"{{{2**63 - 1}}}"),
    "uuid[]": (f"{{{{{UUID(int=1)}}},{{{UUID(int=2)}}}}}", "{}", "{null}"),
    "pg_lsn": ("0/0", "FFFFFFFF/FFFFFFFF"),
    "bytea": ("", "x" * 20_000),
    "bytea[]": ("{}", "{null}", "{{a},{b}}"),
}
# values for the other arguments: by name, else by type
STATED = {
    "v_decider": "order", "v_event": "placed", "v_view_name": "v", "v_other": "v", "v_capture": "c", "v_producer_id": "p",
    "v_schema_name": "public", "v_table_name": "t", "v_schema": "true", "v_kind": "RESET_TO_EARLIEST", "v_what": "schema",
    "v_data": '{"a": 1}', "v_value": "1", "v_move": '{"move": "scale", "power": 2}', "v_to_version": "2",
    "v_fingerprint": "0" * 64, "v_key_ids": "A" * 22,
    "v_moves": '[{"move": "drop", "path": ["a"]}]', "v_upcasts": '[{"to_version": 2, "moves": []}]',
    "bigint": "1", "integer": "1", "text": "a", "jsonb": "[]", "boolean": "true", "uuid": str(UUID(int=1)),
    "timestamp with time zone": "2030-01-01", "pg_lsn": "0/1000", "pg_snapshot": "1:1:", "xid8": "1", "bytea": "a",
}  # fmt: skip

STREAM = "v_decider_id => %(id)s, v_decider => 'order'"
APPEND = (
    "v_event => 'paid', v_event_id => %(new)s, v_decider => 'order', v_decider_id => %(id)s, v_data => '{}',"
    " v_command_id => %(new)s, v_previous_id => %(last)s"
)
ANSWER = "v_view => 'v', v_decider_id => %(id)s, v_offset => %(offset)s, v_lease_token => %(token)s"
# functions that take a UUID as a stream's id, and their arguments by name
OF_A_STREAM = {
    **dict.fromkeys(("get_events", "get_last_event", "read_stream", "stream_head"), STREAM),
    "append_event": APPEND, "ack_event": ANSWER,
    "nack_event": f"{ANSWER}, v_error => 'later'", "schedule_nack_event": f"{ANSWER}, v_milliseconds => 5",
    "fail_event": f"{ANSWER}, v_error => 'no'", "extend_lock": f"{ANSWER}, v_seconds => 60",
}  # fmt: skip

EVENT = "event event_id event_version decider decider_id data command_id previous_id final created_at offset"
REGISTERED = "decider event event_version description"
VIEW = "view start_at lock_timeout_s pooling_delay_s edge_function_url created_at updated_at"
LOCK = "view decider_id offset last_offset locked_until offset_final created_at updated_at"
# calls of fstore-sql's functions, and the columns that its callers read
OF_FSTORE_SQL = {
    "register_decider_event(v_decider => 'd', v_event => 'e', v_description => 'x', v_event_version => 2)": REGISTERED,
    "register_view(v_view => 'w', v_start_at => timestamp '2023-01-23 12:17:17.078384', v_lock_timeout_s => 400,"
    " v_pooling_delay_s => 1, v_edge_function_url => 'http://localhost')": VIEW,
    f"append_event({APPEND}, v_event_version => 1)": EVENT,
    "append_event('paid', %(new)s, 'order', %(id)s, '{}', %(new)s, %(last)s)": EVENT,
    f"get_events({STREAM})": EVENT, f"get_last_event({STREAM})": EVENT,
    "stream_events(v_view_name => 'other', v_limit => 10, v_seconds => 60)": EVENT, "stream_events('other')": EVENT,
    "ack_event(v_view => 'v', v_decider_id => %(id)s, v_offset => %(offset)s)": LOCK,
    "nack_event(v_view => 'v', v_decider_id => %(id)s)": LOCK, "nack_event('v', %(id)s)": LOCK,
    "schedule_nack_event(v_view => 'v', v_decider_id => %(id)s, v_milliseconds => 0)": LOCK,
    "schedule_nack_event('v', %(id)s, 0)": LOCK,
}  # fmt: skip


def functions(store: PlatformStore) -> list[tuple[str, list[tuple[str, str]], int]]:
    """Return the functions: name, names and types of arguments, and the number of arguments without a default."""
    query: LiteralString = f"""
        select p.oid::regproc::text, array(
          select array[p.proargnames[t.number], format_type(t.type, null)]
          from unnest(p.proargtypes::oid[]) with ordinality t(type, number) order by t.number
        ), p.pronargs - p.pronargdefaults
        from pg_proc p
        where p.pronamespace in {INTERFACE} and p.prokind = 'f' and p.prorettype <> 'trigger'::regtype
    """
    return rows(store.connection, query)


def test_null_for_what_has_no_default_is_refused_or_finds_nothing(orders: PlatformStore) -> None:
    accepted, odd = set(), []
    for name, arguments, required in functions(orders):
        if not required:
            continue
        call = f"select * from {name}({', '.join(f'null::{kind}' for _, kind in arguments[:required])})"
        try:
            with orders.connection.transaction(force_rollback=True):
                found = orders.connection.execute(call.encode()).fetchall()
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith("MR"):
                odd.append(f"{name}: {error}")
        else:
            accepted.add(name)
            assert name == "event_store_platform.is_sequenced" or found in ([], [(None,)], [(False,)], [(0,)]), name
    assert odd == []
    assert {name.partition(".")[2] for name in accepted} == LOOK_UPS


def test_null_for_what_may_be_left_out_is_as_if_left_out(view: PlatformStore) -> None:
    names = "event_store.dead_letters event_store.view_info event_store.available_offset_range"
    for name in (*names.split(), "event_store_platform.audit_log", "event_store_platform.producer_statistics"):
        left_out, null = (
            view.connection.execute(f"select * from {name}({argument})".encode()).fetchall()
            for argument in ("", "null")
        )
        assert null == left_out, name


@pytest.fixture
def stream(orders: PlatformStore) -> dict[str, Any]:
    """Return arguments for a stream; its first event is in flight for the view `v`, and free for `other`."""
    decider_id = uuid4()
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    placed = append(orders, str(decider_id))
    for view in ("v", "other"):
        orders.register_view(view, "-infinity")
        pump(orders, view)
    (leased,) = orders.lease_events("v")
    delivery = {"offset": leased.offset, "token": leased.lease_token}
    return {"id": decider_id, **delivery, "last": placed.event_id, "new": UUID(int=7)}


def test_no_value_of_an_argument_raises_an_error_of_postgres(orders: PlatformStore, stream: dict[str, Any]) -> None:
    """One argument at a time is odd; the others fit a rows view, a bulk view, or a capture."""
    connection = orders.connection
    orders.register_view("b", "-infinity", mode="bulk")
    lease = orders.claim_batch("b", "me")[0]
    source, producers = Source(CaptureStore(connection)), ProducerStore(connection)
    source.begin()
    producers.register_producer("p")
    connection.execute("select event_store_platform.begin_key_epoch(1, %s)", (STATED["v_fingerprint"],))
    transaction = producers.begin_transaction("p", 0, 1, 0).transaction_id
    common = {**STATED, "v_decider_id": stream["id"], "v_offset": stream["offset"], "v_transaction_id": transaction}
    surroundings = [
        common | {"v_view": "v", "v_lease_token": stream["token"]},
        common | {"v_view": "b", "v_partition": lease.partition, "v_lease_token": lease.lease_token},
        common | {"v_view": "b", "v_lease_token": source.token},
    ]
    wrong = set()
    for name, arguments, required in functions(orders):
        for odd, kind in arguments:
            for value, stated in product(ODD.get(kind, ()), surroundings):
                given = {odd: (kind, value)}
                for argument, type_ in arguments[:required]:
                    one = str(stated.get(argument, stated.get(type_.removesuffix("[]"))))
                    given.setdefault(argument, (type_, [one] if type_.endswith("[]") else one))
                stated_arguments = [
                    sql.SQL("{} => {}::{}").format(sql.SQL(argument), text, sql.SQL(type_))
                    for argument, (type_, text) in given.items()
                ]
                call = sql.SQL("select from {}({})").format(sql.SQL(name), sql.SQL(", ").join(stated_arguments))
                try:
                    with connection.transaction(force_rollback=True):
                        connection.execute(call)
                except psycopg.Error as error:
                    if not (error.sqlstate or "").startswith("MR"):
                        wrong.add((name, odd, value[:40], str(error)))
    assert wrong == set()


def result(store: PlatformStore, call: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Call a function and undo it; return its rows."""
    with store.connection.transaction(force_rollback=True):
        cursor = store.connection.cursor(row_factory=dict_row)
        return cursor.execute(f"select * from event_store.{call}".encode(), arguments).fetchall()


def test_a_uuid_for_a_streams_id_does_what_its_text_does(orders: PlatformStore, stream: dict[str, Any]) -> None:
    """In every function that has an argument v_decider_id of type uuid, called by the names of the arguments."""
    query = f"""
        select distinct p.proname from pg_proc p, unnest(p.proargnames[1:p.pronargs], p.proargtypes::oid[]) a(name, type)
        where p.pronamespace in {INTERFACE} and a.name = 'v_decider_id' and a.type = 'uuid'::regtype
    """
    with_a_uuid = rows(orders.connection, query)
    assert {name for (name,) in with_a_uuid} == set(OF_A_STREAM)
    other_callers = """
        select proname from pg_proc where pronamespace = 'event_store'::regnamespace and proname = any(%s)
        group by proname having count(*) <> 2 or count(distinct proacl::text) <> 1
    """
    assert rows(orders.connection, other_callers, [*OF_A_STREAM]) == []
    wrong = []
    for name, arguments in OF_A_STREAM.items():
        by_uuid, by_text = (
            result(orders, f"{name}({arguments})", {**stream, "id": decider_id})
            for decider_id in (stream["id"], str(stream["id"]))
        )
        if name == "append_event":  # its offset differs each time
            by_uuid[0]["offset"] = by_text[0]["offset"]
        if by_uuid != by_text or len(by_uuid) != 1:
            wrong.append((name, by_uuid, by_text))
    assert wrong == []


def test_callers_of_fstore_sql_read_the_same_columns(orders: PlatformStore, stream: dict[str, Any]) -> None:
    wrong = []
    for call, columns in OF_FSTORE_SQL.items():
        for decider_id in (stream["id"], str(stream["id"])):
            (row,) = result(orders, call, {**stream, "id": decider_id})
            # a view has more columns after these
            if list(row)[: len(columns.split())] != columns.split():
                wrong.append((call, list(row)))
    assert wrong == []


def test_every_function_is_called_by_the_names_of_its_arguments(orders: PlatformStore) -> None:
    """No two overloads of a function are ambiguous."""
    unclear = []
    for name, arguments, _ in functions(orders):
        nulls = ", ".join(f"{each} => null::{kind}" for each, kind in arguments)
        try:
            orders.connection.execute(f"explain select * from {name}({nulls})".encode())
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith("MR"):
                unclear.append(f"{name}: {error}")
    assert unclear == []


def test_a_duration_is_a_bigint_of_seconds_whose_name_says_so(orders: PlatformStore) -> None:
    """Functions that lock a stream call it v_seconds, like fstore-sql; only schedule_nack_event takes milliseconds."""
    query = f"""
        select p.proname, a.name, format_type(a.type, null)
        from pg_proc p, unnest(p.proargnames[1:p.pronargs], p.proargtypes::oid[]) a(name, type)
        where p.pronamespace in {INTERFACE}
          and (a.name ~ 'second|_ms$|minute|_s$|timeout|duration' or a.type = 'interval'::regtype)
    """
    found = rows(orders.connection, query)
    assert {name for _, name, _ in found if not name.endswith("_s")} == {"v_seconds", "v_milliseconds"}
    assert {kind for _, _, kind in found} == {"bigint"}
