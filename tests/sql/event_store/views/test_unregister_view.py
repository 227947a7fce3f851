"""Removing a view: completely, not while it is used, and nothing of it comes back."""

from functools import partial

from millrace.errors import LeaseLost, NotInFlight, UnknownView, ViewInUse
from millrace.event_store.platform import PlatformStore
from tests.sql.event_store.views.test_dead_letters import park
from tests.support.factories import Connect, append, append_to, at_once, pump, refusal, set_clock, value
from tests.support.sql_calls import get_events


def test_everything_of_the_view_goes_and_nothing_of_others(view: PlatformStore) -> None:
    append_to(view, "a", "b", "c")
    park(view, "a")
    view.register_view("kept", "-infinity")
    pump(view, "kept")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    kept = view.view_info("kept")
    view.unregister_view("v", "replaced by billing")
    refusal(UnknownView, lambda: view.stream_events("v"))
    assert view.dead_letters() == []
    assert view.view_info() == kept
    assert len(get_events(view, "a", "order")) == 1
    view.unregister_view("kept")
    for table in ("views", "checkpoints", "stream_locks", "dispatches"):
        assert view.connection.execute(f"select from event_store.{table}".encode()).fetchall() == [], table


def test_unregistering_at_once_removes_once(view: PlatformStore, connect: Connect) -> None:
    results = at_once([partial(PlatformStore(connect()).unregister_view, "v") for _ in range(3)])
    errors = [result.exception() for result in results]
    assert errors.count(None) == 1
    assert all(isinstance(error, UnknownView | ViewInUse) for error in errors if error)
    assert value(view.connection, "select count(*) from event_store.audit_log where operation <> 'register_view'") == 1


def test_an_answer_to_a_former_view_of_the_name_is_refused(view: PlatformStore, connect: Connect) -> None:
    append_to(view, "a", "a")
    pump(view, "v")
    former, holder = PlatformStore(connect()), PlatformStore(connect())
    set_clock(former.connection, "2030-01-01 00:00:00+00")
    (late,) = former.lease_events("v", 1, 60)
    for store in (view, former, holder):
        set_clock(store.connection, "2030-01-02 00:00:00+00")
    view.unregister_view("v")
    view.register_view("v", "-infinity")
    # without a token it could be an answer to the new view's delivery
    answers = [
        partial(former.ack_event, "v", "a", late.offset, late.lease_token),
        partial(former.nack_event, "v", "a", None, late.lease_token),
    ]
    for answer in answers:
        refusal(NotInFlight, answer)
    pump(view, "v")
    (held,) = holder.lease_events("v", 1, 60)
    assert (held.offset, held.attempt) == (late.offset, 1)
    assert held.lease_token > late.lease_token
    for answer in answers:
        assert "for another consumer" in str(refusal(NotInFlight, answer).detail)
    assert former.ack_events("v", [late.offset], [late.lease_token]) == set()
    holder.ack_event("v", "a", held.offset)


def test_a_lease_of_a_former_view_of_the_name_commits_nothing(bulk: PlatformStore) -> None:
    append(bulk, "a")
    set_clock(bulk.connection, "2030-01-01 00:00:00+00")
    old = bulk.claim_batch("v", "owner", lease_s=60)
    set_clock(bulk.connection, "2030-01-02 00:00:00+00")
    bulk.unregister_view("v")
    bulk.register_view("v", "-infinity", mode="bulk")
    refusal(LeaseLost, lambda: bulk.commit_batch("v", old))
    new = bulk.claim_batch("v", "owner")
    assert new[0].lease_token > old[0].lease_token
    refusal(LeaseLost, lambda: bulk.commit_batch("v", old))
    bulk.commit_batch("v", new)
