"""Invalid arguments of functions: each is refused with its own class, the values and the remedy, and no change."""

from collections.abc import Callable

import pytest

from millrace import errors
from millrace.capture.store import CaptureStore
from millrace.errors import LeaseLost, Malformed, MillraceError, PositionOutOfRange, UnknownPartition
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from millrace.producers.store import ProducerStore
from tests.support.capturing.captures import Source
from tests.support.factories import append, everything, pump

TABLE = '{"schema": "s", "table": "t", "decider": "d", "fingerprint": ""}'
SCHEMA = (
    '{"schema": "public", "table": "t", "identity": "default", "commit_lsn": "0/1", "commit_idx": 0, "columns": ['
    '{"name": "id", "type_oid": 23, "type_modifier": -1, "type": "integer", "key": true}]}'
)
# calls; ? stands for each of the texts behind the call; %(offset)s is in flight, %(partition)s leased, and
# %(transaction)s open
REFUSED: list[tuple[type[MillraceError], str, tuple[str, ...]]] = [
    # events
    (Malformed, "register_decider_event(?)", ("'', 'e', 'd'", "'d', '', 'd'", "null, 'e', 'd'", "'d', null, 'd'")),
    (Malformed, "register_decider_event('d', 'e', ?)", ("null", "'d', null", "'d', 0", "'d', -9223372036854775808")),
    (Malformed, "register_event_schema('d', 'e', 'true', ?)", ("0", "-1")),
    (Malformed, "event_store_platform.withdraw_registration('order', 'placed', 1, ?)", ("null", "'events'")),
    (Malformed, "register_decider_events(?)", ("null", "'[]'", "'{}'", "'null'")),
    (Malformed, """register_decider_events('[{"decider": "d", "event": "e", "description": "good"}, ?]')""", (
        *('{"decider": "d", "event": "", "description": "x"}', '{"decider": "d", "event": "f"}', '"no object"'),
        f'{{"decider": "{"d" * 1025}", "event": "f", "description": "x"}}',
        *(
            f'{{"decider": "d", "event": "f", "description": "x", {version}}}'
            for version in ('"version": 2', *(f'"event_version": {v}' for v in ('"two"', "0", "1.5", "1e30")))
        ),
    )),
    (Malformed, "append_events(?)", ("null", "'[]'", "'{}'", "'[1]'", "'[null]'", "'[[]]'", "'\"text\"'", "'null'")),
    (Malformed, "append_event('placed', gen_random_uuid(), 'order', 'o-2'::text, ?)", (
        "null, gen_random_uuid(), null", "'{}', gen_random_uuid(), null, null", "'{}', gen_random_uuid(), null, 1, null",
    )),
    (Malformed, "read_stream('order', 'o-1'::text, ?, ?)", ("0", "-1")),
    (Malformed, "read_stream('order', 'o-1'::text, 1, ?)", ("0", "null", "1, null")),
    (Malformed, "events_of_correlation('c', 0, ?)", ("0", "-1", "null")),
    # the log
    (Malformed, "latest_events(?)", ("0", "-1", "null")),
    (Malformed, "log_gaps(?)", ("0", "-1")),
    (Malformed, "verify_events(0, ?)", ("0", "null")),
    (Malformed, "verify_positions(0, 0, ?)", ("0", "null")),
    (Malformed, "attend_log(?)", ("-1", "11", "null")),
    (Malformed, "await_positions(?)", ("null, 5", "'{}', null", "'{}', -1", "'{}', 61")),
    (Malformed, "read_log(0, ?)", ("null", "0, 0", "0, -1", "0, null", "0, 0, '{order}'")),
    (PositionOutOfRange, "read_log(%(partition)s, ?)", ("-1", "2", "4611686018427387904")),
    (UnknownPartition, "read_log(?, 0)", ("16", "-1", "null")),
    (Malformed, "validate_offset_range(0, ?)", ("null, 5", "5, null")),
    (PositionOutOfRange, "validate_offset_range(0, ?)", ("-1, 0", "1, 0", "0, 1", "1, 1")),
    (Malformed, "offset_for_timestamp(0, ?)", ("null",)),
    (Malformed, "stream_views('order', ?)", ("null", "'a', 0")),
    (Malformed, "stream_views(null, 'a')", ("",)),
    # views
    (Malformed, "register_view(?)", ("''", "null", f"'{'x' * 201}'", f"'{'é' * 101}'")),
    (Malformed, "register_view('v', v_lock_timeout_s => ?)", ("0", "3601", f"{-(2**63)}")),
    (Malformed, "register_view('v', v_pooling_delay_s => ?)", ("-1", f"{2**31}")),
    (Malformed, "register_view('v', v_max_attempts => ?)", ("0", "-1")),
    (Malformed, "register_view('v', v_version => ?)", ("-1",)),
    (Malformed, "register_view('v', v_mode => ?)", ("'both'", "'bulk', v_edge_function_url => 'http://localhost'")),
    (Malformed, "register_view('v', v_deciders => ?)",
     ("'{null}'", "array_fill('d'::text, '{1001}')", f"'{{{'é' * 513}}}'")),
    (Malformed, "register_view('v', v_events => ?)", ("'{paid,null}'", f"'{{paid,{'x' * 1025}}}'")),
    (Malformed, "register_view('v', v_owner => ?)", ("'nobody_of_this_name'",)),
    (Malformed, "register_view('v', v_edge_function_url => ?)", (f"'http://{'x' * 2000}'",)),
    (Malformed, "register_view('v', v_push_format => ?)", ("'CloudEvents'", "'binary'", "''")),
    (Malformed, "enable_view('r', ?)", ("null",)),
    (Malformed, "end_locks('r', null, ?)", ("'a'",)),
    (Malformed, "retry_dead_letters('r', null, ?)", ("'a'",)),
    (Malformed, "discard_dead_letter('r', 'order', 'a', ?)", ("''", "null")),
    (Malformed, "begin_drain('b', ?)", ("''", f"'{'x' * 201}'")),
    (Malformed, "end_drain(?)", ("null, 'run'", "'b', null")),
    (Malformed, "attach_consumer('b', ?)", ("''", f"'{'x' * 201}'", "'run', 0", "'run', 3601")),
    (Malformed, "view_info(null, ?)", ("0", "-1")),
    (Malformed, "wanting_views(?)", ("null",)),
    (Malformed, "has_seen(?)", ("null, 'd', 'i', 1", "'r', null, 'i', 1", "'r', 'd', null, 1", "'r', 'd', 'i', null")),
    (Malformed, "seek_view('n', ?)", ("null", "'earliest'", "'EXACT_OFFSET'", "'EXACT_OFFSET', null, null, 0")),
    (Malformed, "seek_view('n', 'EXACT_OFFSET', 5, ?)", ("null", "'2030-01-01', 0")),
    (Malformed, "seek_view('n', 'EXACT_TIMESTAMP', ?)", ("null", "5, '2030-01-01', 0")),
    (Malformed, "seek_view('n', ?)", ("'RESET_TO_LATEST', 5, null, 0", "'RESUME_OR_LATEST', null, '2030-01-01'")),
    (UnknownPartition, "seek_view('n', 'RESET_TO_LATEST', null, null, ?)", ("16", "-1", "16, true")),
    # rows mode
    (Malformed, "dispatch_events('r', ?)", ("0", "-1", "null", "10, 0", "10, -1", "10, null")),
    (Malformed, "lease_events('r', ?)", ("0", "-1", "null", "1, 0", "1, -5", "1, 3601")),
    (Malformed, "stream_events('r', ?)", ("0", "-1", "null", "1, 0", "1, -5", "1, 3601")),
    (Malformed, "ack_events('r', ?)", ("null", "null, '{1}'", "'{1,2}', '{1}'", "'{1}', '{1,2}'")),
    (Malformed, "ack_events('r', ?)", ("'{1}', '{}'", "'{}', '{1}'")),
    (Malformed, "fail_event('r', 'o-1'::text, %(offset)s, ?)", ("''", "null")),
    (Malformed, "extend_lock('r', 'o-1'::text, %(offset)s, ?)", ("0", "-1", "3601")),
    (Malformed, "schedule_nack_event('r', 'o-1'::text, ?)", ("-1", "null", f"{2**63 - 1}")),
    (errors.NotInFlight, "fail_event('r', 'o-1'::text, ?, 'no')", ("-1", f"{2**63 - 1}", "null")),
    (errors.NotInFlight, "extend_lock('r', 'o-1'::text, ?)", ("-1", f"{2**63 - 1}", "null")),
    # bulk mode
    (Malformed, "claim_batch('b', ?)", ("''", "'me', 0", "'me', 10, 0", "'me', 10, -5", "'me', 10, 3601")),
    (Malformed, "claim_views('{b}', ?)", ("''", "'me', 0", "'me', 1, 0", "'me', 1, 3601")),
    (Malformed, "claim_partition('b', 0, ?)", ("''", "'me', 0", "'me', 3601")),
    (Malformed, "extend_owner(?)", ("'', 60", "'me', 0", "'me', 3601")),
    (Malformed, "extend_lease('b', array[%(partition)s], array[%(token)s], ?)", ("0", "-1", "3601")),
    (Malformed, "extend_lease('b', ?)", ("'{}', '{}'", "'{0,1}', '{1}'")),
    (Malformed, "commit_batch('b', ?)", ("'{}', '{}', '{}'", "'{0,1}', '{1,1}', '{1}'")),
    (Malformed, "commit_batch('b', ?)", ("'{0}', '{1}', '{}'", "'{0,0}', '{1,0}', '{1,1}'")),
    (PositionOutOfRange, "commit_batch('b', array[%(partition)s], ?, array[%(token)s])",
     ("'{}'", "'{1,2}'", "'{null}'", "'{-1}'")),
    (LeaseLost, "commit_batch('b', array[?], '{1}', array[%(token)s])", ("99", "-1")),
    (LeaseLost, "read_batch('b', ?)", ("-1, -1",)),
    *(
        (LeaseLost, call, ("99, %(token)s", "%(partition)s, 0", "%(partition)s, %(token)s + 1"))
        for call in ("read_batch('b', ?)", "fail_streams('b', ?, '[%(failure)s]')")
    ),
    (Malformed, "fail_streams('b', %(partition)s, %(token)s, '?')", ("{}", "[]", "null", '"text"', "[1]", "[null]")),
    (Malformed, "fail_streams('b', %(partition)s, %(token)s, '[?]')", (
        *("%(failure)s, %(failure)s", '{"decider": "order", "decider_id": "o-1"}'),
        '{"decider": "order", "decider_id": 1, "error": "e"}',
        '{"decider": null, "decider_id": "o-1", "error": "e"}',
        *(
            f'{{"decider": "order", "decider_id": "o-1", "error": {error}}}'
            for error in ('""', "null", *(f'"e", "offset": {at}' for at in ("-1", "1.5", '"x"', "true", str(10**19))))
        ),
    )),
    # producers
    (Malformed, "register_producer(?)", ("''", f"'{'x' * 1025}'", f"'{'ü' * 513}'", "'x', -1")),
    (Malformed, "begin_transaction(?)", ("'', 0, 1, 0", "'p', -1, 1, 0", "'p', 0, 0, 0", "'p', 0, 1, -1")),
    (Malformed, "begin_transaction('p', 0, 1, 0, ?)", ("0", f"{2**31}")),
    (errors.UnknownProducer, "begin_transaction(?)", ("'nobody', 0, 1, 0", "'p', 1, 1, 0")),
    (errors.UnknownProducer, "ingest_events('nobody', 0, 1, 0)", ("",)),
    (Malformed, "ingest_events('p', 0, 1, 0, v_state => '?')", ("[1]", "1", '{"": 1}', f'{{"{"x" * 1025}": 1}}')),
    (Malformed, "ingest_events('p', 0, 1, 0, v_digest => ?)", ("''", "repeat('x', 65)::bytea")),
    (Malformed, "add_state_change('%(transaction)s', ?, '1')", ("''", f"'{'x' * 1025}'")),
    (Malformed, "add_events('%(transaction)s', '?')", ("[]", '[{"event_id": "no uuid"}]')),
    (Malformed, "expire_transactions(?)", ("-1", f"{2**31}", "1, 0")),
    (Malformed, "overdue_transactions(?)", ("-1", f"{2**31}", "0, 0")),
    # personal data
    (Malformed, "begin_key_epoch(?)", tuple(f"{epoch}, repeat('0', 64)" for epoch in ("null", "0", "2", "-1"))),
    (Malformed, "begin_key_epoch(1, ?)", ("null", "''", "repeat('0', 63)", "repeat('A', 64)")),
    (errors.EventNotRegistered, "subject_keys(?, 1, '0', '{}', '{}', '{}')", ("null", "'nobody'")),
    (Malformed, "subject_keys('order', ?, '{}', '{}', '{}')", ("1, repeat('0', 64)", "null, null")),
    (errors.UnknownSubject, "forget_subject(?, 'why')", ("null", "'x'")),
    # the archive and alerts
    (Malformed, "purge_events(0, ?)", ("0", "-1")),
    (Malformed, "purge_results(now() - interval '2 days', ?)", ("null", "''", "'r', 0", "'r', null")),
    (Malformed, "purge_results(?, 'r')", ("null", "now()", "'infinity'")),
    (Malformed, "fail_dispatch(?, 'e')", ("null",)),
    (Malformed, "number_archive_fields(?)", ("'{a,null}'",)),
    (Malformed, "observe_incidents(?)", ("'', '[]'", f"'{'a' * 201}', '[]'", "'a', '[]', null", "'a', '[]', true, -1")),
    (Malformed, "settle_alert(gen_random_uuid(), null)", ("",)),
    # captures; %(capture)s is leased
    (Malformed, f"register_capture(?, 's', 'p', '[{TABLE}]')", ("''", "'1a'", "'A'", "'a b'", f"'{'a' * 32}'", "'ä'")),
    (Malformed, f"register_capture('d', ?, '[{TABLE}]')", ("'', 'p'", "'s', ''")),
    (Malformed, "register_capture('d', 's', 'p', '?')", (
        *("null", "{}", "[]", '[{"schema": "s", "table": "t", "decider": "d"}]'),
        *(f"[{TABLE.replace(*other)}]" for other in (('"s"', '""'), ('"s"', "1"))),
        *(f"[{TABLE[:-1]}, {key}}}]" for key in ('"key_columns": "a"', '"key_columns": [1]')),
        *(f"[{TABLE}, {TABLE.replace(*other)}]" for other in (('"d"', '"e"'), ('"t"', '"u"'))),
    )),
    (Malformed, "claim_capture('c', ?)", ("''", "'me', 0", "'me', -1", f"'me', {2**31}")),
    (Malformed, "extend_capture('c', %(capture)s, ?)", ("0", "-1", f"{2**31}")),
    (Malformed, "begin_generation('c', %(capture)s, ?)",
     ("'', 'd', '0/1', '1', '1'", "'1', '', '0/1', '1', '1'", "'1', 'd', '0/1', '1', '1 0/10'")),
    (Malformed, "follow_timelines('c', %(capture)s, ?, '0/1000')", ("''", "'x'", "'0'", "'1 0/1'", "'1 0/1,2'")),
    (Malformed, "follow_timelines('c', %(capture)s, ?)",
     ("'1 0/1, 2\n', '0/1000'", "'1 0/1, 2, ', '0/1000'", "'2', null")),
    (Malformed, "record_gap('c', null, null, '')", ("",)),
    (Malformed, "restart_capture('c', '')", ("",)),
    (Malformed, "compare_changes('c', '?')",
     ("{}", '[{"commit_lsn": "x", "commit_idx": 1}]', '[{"commit_lsn": "0/1", "commit_idx": "x"}]')),
    (Malformed, "purge_wal_events('c', now(), ?)", ("0", "-1", "10000000")),
    (Malformed, "emit_changes('c', %(capture)s, ?)", ("0", "-1", "100001")),
    (Malformed, "requeue_changes('c', null, '[1]')", ("",)),
    (Malformed, "finish_backfill('c', %(capture)s, 'public', ?)", ("'none'", "'t', 0")),
    (Malformed, "emit_backfill('c', %(capture)s, 'public', 't', '800:800:', '0/1', ?, null, true)", tuple(
        f"'{{{ids}}}', array[{event_ids}]::uuid[], gen_random_uuid(), array[{data}]::text[], '{{{faults}}}'"
        for ids, event_ids, data, faults in (
            *(("", "gen_random_uuid()", "'{}'", ""), ("[1]", "gen_random_uuid()", "", "")),
            *(("[1]", "gen_random_uuid()", "'{}'", "null,null"), ("[1]", "gen_random_uuid()", "'{'", "")),
            ("[1]", "null", "'{}'", ""),
        )
    )),
    (Malformed, "keep_schemas('c', %(capture)s, '0/1', '?')",
     ("{}", *(f"[{SCHEMA.replace(*other)}]" for other in (("0/1", "x"), ('"t"', '"other"'))))),
    (Malformed, "begin_verification('c', 'public', ?)", ("'x', '1', false, null", "'t', '1', true, null")),
    (Malformed, "end_verification(0, true, 0)", ("",)),
    (errors.VerificationOver, "end_verification(0, true)", ("",)),
    (LeaseLost, "emit_changes('c', %(capture)s + 1)", ("",)),
    (LeaseLost, "keep_schemas('c', %(capture)s + 1, '0/1', '[]')", ("",)),
    (LeaseLost, "follow_timelines('c', %(capture)s + 1, '2', '0/1000')", ("",)),
    *((errors.UnknownCapture, call, ("",)) for call in (
        "begin_verification('none', 'public', 't', '1', false, null)", "capture_info('none')",
        "claim_capture('none', 'me')", "compare_changes('none', '[]')", "emit_changes('none', 1)",
        "keep_schemas('none', 1, '0/1', '[]')", "purge_wal_events('none', now())",
        "record_gap('none', null, null, 'x')", "release_capture('none', 1)", "requeue_changes('none')",
        "restart_capture('none', 'x')", "unregister_capture('none')",
    )),
    *((UnknownPartition, call, ("16", "-1")) for call in (
        "available_offset_range(?)", "validate_offset_range(?, 0, 0)", "offset_for_timestamp(?, now())",
        "claim_partition('b', ?, 'me')", "purge_events(?)", "mark_archived(?, 0)", "raise_low_water_mark(?, 0)",
        "list_archive_file(?, 0, 1, 'c', 1, repeat('0', 64))", "archive_state(?)", "lock_archive(?, 'me')",
    )),
]  # fmt: skip


def test_each_is_refused_with_its_class_and_changes_nothing(orders: PlatformStore) -> None:
    orders.connection.execute("set search_path = event_store, event_store_platform")
    orders.register_view("r", "-infinity")
    for view in ("b", "n"):
        orders.register_view(view, "-infinity", mode="bulk")
    append(orders, "o-1")
    pump(orders, "r")
    (event,) = orders.lease_events("r")
    (lease,) = orders.claim_batch("b", "me")
    values: dict[str, object] = {"offset": event.offset, "partition": lease.partition, "token": lease.lease_token}
    source, producers = Source(CaptureStore(orders.connection)), ProducerStore(orders.connection)
    source.begin()
    producers.register_producer("p")
    values |= {"capture": source.token, "transaction": producers.begin_transaction("p", 0, 1, 0).transaction_id}
    values["failure"] = '{"decider": "order", "decider_id": "o-1", "error": "e"}'
    before = everything(orders)
    wrong: list[tuple[str, object]] = []
    for error, template, arguments in REFUSED:
        for argument in arguments:
            call = template.replace("?", argument) % values
            try:
                with refusals(), orders.connection.transaction():
                    orders.connection.execute(f"select * from {call}".encode())
            except MillraceError as refused:
                if not isinstance(refused, error) or not refused.detail or not refused.hint:
                    wrong.append((call, refused))
            else:
                wrong.append((call, "it was accepted"))
    assert wrong == []
    assert everything(orders) == before


def test_a_text_that_postgres_does_not_take_is_malformed(orders: PlatformStore) -> None:
    orders.register_view("r")
    calls: list[Callable[[], object]] = [
        lambda: orders.fail_event("r", "o-1", 1, "no\0"),
        lambda: orders.register_view("x\0"),
        lambda: orders.register_view("v", "yesterday evening"),
        lambda: orders.seek_view("r", "EXACT_TIMESTAMP", timestamp="yesteryear"),
        lambda: orders.offset_for_timestamp(0, "soon"),
        lambda: orders.connection.execute("select event_store_platform.register_capture('d', 's', 'p', '[1]')"),
    ]
    for call in calls:
        with pytest.raises(Malformed), refusals():
            call()
