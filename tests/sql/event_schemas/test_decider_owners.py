"""The owner of a decider: every writer, or the role that its first registration names."""

from dataclasses import replace
from uuid import uuid4

import pytest
from psycopg import errors

from millrace.capture.store import CaptureStore, TableRegistration
from millrace.errors import DeciderCaptured, EventNotRegistered, Malformed, NotDeciderOwner
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, refusal, rows, start_blocked, value
from tests.support.logins import Login
from tests.support.patience import patience
from tests.support.sql_calls import BatchEvent, append_events, get_events

WRITER = "event_store_writer"
TABLE = TableRegistration("public", "items", "table:public.items", None, "1")


def owners(store: PlatformStore, decider: str) -> list[tuple[str, str | None]]:
    return rows(
        store.connection, "select event, owner from event_store.deciders where decider = %s order by 1", decider
    )


def test_only_members_of_its_role_append_to_an_owned_decider(orders: PlatformStore, login: Login) -> None:
    team = login(WRITER).info.user
    member, other = PlatformStore(login(WRITER, team)), PlatformStore(login(WRITER))
    member.register_decider_event("payment", "paid", "Paid.", owner=team)
    first = append(member, decider="payment", event="paid")
    batch = [BatchEvent("payment", "o-1", "paid", uuid4(), {}, uuid4(), final=True)]
    for attempt in (
        lambda: append(other, "o-2", decider="payment", event="paid"),
        lambda: append(other, "o-1", first.event_id, decider="payment", event="paid", final=True),
        lambda: append_events(other, batch),
        lambda: other.register_decider_event("payment", "forged", "By another."),
    ):
        assert team in str(refusal(NotDeciderOwner, attempt).detail)
    assert len(get_events(orders, "o-1", "payment")) == 1
    # the role owns the decider's later events too
    member.register_decider_event("payment", "returned", "Returned.")
    assert owners(orders, "payment") == [("paid", team), ("returned", team)]
    append_events(member, batch)


def test_a_decider_that_is_everybodys_stays_so(orders: PlatformStore, login: Login) -> None:
    writer = PlatformStore(login(WRITER))
    with pytest.raises(NotDeciderOwner):
        writer.register_decider_event("order", "mine", "", owner=writer.connection.info.user)
    assert {owner for _, owner in owners(orders, "order")} == {None}
    with pytest.raises(Malformed, match="there is no role nobody"):
        writer.register_decider_event("new", "mine", "", owner="nobody")
    with pytest.raises(NotDeciderOwner):
        writer.register_decider_event("new", "mine", "", owner="event_store_reader")


def test_of_two_first_registrations_one_says_whose_it_is(orders: PlatformStore, connect: Connect, login: Login) -> None:
    first, team = connect(autocommit=False), login(WRITER).info.user
    PlatformStore(first).register_decider_event("payment", "paid", "", owner=team)
    second = PlatformStore(login(WRITER))
    late = start_blocked(orders, second, lambda: second.register_decider_event("payment", "other", ""))
    first.commit()
    with pytest.raises(NotDeciderOwner):
        late.result(patience())


def test_nobody_forges_changes_of_a_table_before_it_is_captured(orders: PlatformStore, login: Login) -> None:
    writer = PlatformStore(login(WRITER))
    table = replace(TABLE, decider="items")
    writer.register_decider_event(table.decider, "updated", "")
    append_events(
        writer, [BatchEvent(table.decider, "[1]", "updated", data={"commit_lsn": "forged", "committed_at": "x"})]
    )
    captures = CaptureStore(orders.connection)
    refused = refusal(DeciderCaptured, lambda: captures.register_capture("c", "slot", "publication", [table]))
    assert "registered for every writer" in str(refused.detail)
    assert value(orders.connection, "select count(*) from event_store.captured_tables") == 0
    # an operator cannot make it a capture's by mistake either
    refusal(Malformed, lambda: orders.set_decider_owner(table.decider, "event_store_owner"))
    # decider names of captures are reserved for them
    refusal(Malformed, lambda: writer.register_decider_event(TABLE.decider, "updated", ""))
    captures.register_capture("c", "slot", "publication", [TABLE])


def test_a_captures_decider_is_never_a_writers(orders: PlatformStore, login: Login) -> None:
    captures = CaptureStore(orders.connection)
    captures.register_capture("c", "slot", "publication", [TABLE])
    captures.unregister_capture("c", "a test")
    with pytest.raises(NotDeciderOwner):
        append(PlatformStore(login(WRITER)), "[1]", decider=TABLE.decider, event="updated")
    captures.register_capture("c", "slot", "publication", [TABLE])


def test_an_operator_gives_a_decider_to_a_role_later_and_back(orders: PlatformStore, login: Login) -> None:
    team = login(WRITER).info.user
    member, other = PlatformStore(login(WRITER, team)), PlatformStore(login(WRITER))
    first = append(other, "o-1")
    assert orders.set_decider_owner("order", team, "one service writes orders")
    assert not orders.set_decider_owner("order", team)
    assert owners(orders, "order") == [(event, team) for event in ("paid", "placed", "shipped")]
    refusal(NotDeciderOwner, lambda: append(other, "o-1", first.event_id))
    append(member, "o-1", first.event_id)
    member.register_event_upcast("order", "placed", 2, [])
    append(other, decider="invoice")
    assert orders.set_decider_owner("order", None)
    append(other, "o-2")
    refusal(NotDeciderOwner, lambda: member.register_event_upcast("order", "placed", 3, []))
    audited = [(entry.detail, entry.reason) for entry in orders.audit_log() if entry.operation == "set_decider_owner"]
    assert audited == [
        ({"decider": "order", "owner": None, "before": team}, None),
        ({"decider": "order", "owner": team, "before": None}, "one service writes orders"),
    ]
    refusal(EventNotRegistered, lambda: orders.set_decider_owner("ordr", team))
    refusal(Malformed, lambda: orders.set_decider_owner("order", "no_role"))
    CaptureStore(orders.connection).register_capture("c", "slot", "publication", [TABLE])
    refusal(DeciderCaptured, lambda: orders.set_decider_owner(TABLE.decider, team))
    with pytest.raises(errors.InsufficientPrivilege):
        member.set_decider_owner("order", team)


def test_change_events_reads_beside_what_it_cannot_read(orders: PlatformStore) -> None:
    CaptureStore(orders.connection).register_capture("c", "slot", "publication", [TABLE])
    orders.connection.execute("alter table event_store.events disable trigger guard_append")
    orders.connection.execute(
        """
        insert into event_store.events (
          event, event_id, decider, decider_id, data, command_id, previous_id, created_at, "offset", version
        )
        select
          'updated', gen_random_uuid(), 'table:public.items', '[1]', data::jsonb, gen_random_uuid(),
          case when n > 1 then gen_random_uuid() end, now(), n, n
        from unnest(array[
          '{"commit_lsn": "x", "commit_idx": "y", "committed_at": "z", "source": {"generation": 1e99, "oid": -1}}',
          '{"commit_lsn": "0/1", "commit_idx": 2, "committed_at": "2026-01-05T12:00:00+00:00", "source": {"generation": 3, "oid": 4}}',
          '[]', '"text"'
        ]) with ordinality d(data, n)
        """
    )
    read = rows(
        orders.connection,
        "select commit_lsn::text, commit_idx, committed_at::text, source_generation, source_table_oid"
        " from event_store.change_events order by seq",
    )
    nothing = (None, None, None, None, None)
    assert read == [nothing, ("0/1", 2, "2026-01-05 12:00:00+00", 3, 4), nothing, nothing]
