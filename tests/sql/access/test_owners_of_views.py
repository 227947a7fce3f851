"""The owner of a view: only its members and operators change and consume the view."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from uuid import uuid4

import psycopg
import pytest

from millrace.errors import Malformed, NotViewOwner
from millrace.event_store.lease_rows import StreamFailure
from millrace.event_store.platform import PlatformStore
from millrace.handlers.store import PushStore
from millrace.read_models.stored.versions import WrongView, ensure_version
from tests.support.building.drains import Everything
from tests.support.factories import append, append_to, pump, refusal, rows, value
from tests.support.logins import logins

Login = Callable[..., PlatformStore]


@pytest.fixture
def login(orders: PlatformStore) -> Iterator[Login]:
    """Yield an opener of sessions as a new user that is a member of the given roles only."""
    with logins(orders.connection) as made:
        yield lambda *roles: PlatformStore(made(*roles))


@pytest.fixture
def team(orders: PlatformStore) -> Iterator[str]:
    """Yield a role shared by the logins of a test."""
    name = f"team_{uuid4().hex}"
    orders.connection.execute(f"create role {name} nologin in role event_store_consumer".encode())
    yield name
    orders.connection.execute(f"drop role if exists {name}".encode())


def owner(store: PlatformStore, view: str) -> str:
    return str(value(store.connection, "select owner from event_store.views where view = %s", view))


def test_a_view_is_its_logins_or_every_consumers_or_a_roles(orders: PlatformStore, login: Login, team: str) -> None:
    consumer, operator = login("event_store_consumer"), login("event_store_owner")
    view = consumer.register_view("mine")
    assert view.owner == value(consumer.connection, "select session_user::text") == owner(orders, "mine")
    assert operator.register_view("everybodys", "-infinity").owner == "event_store_consumer"
    assert operator.register_view("theirs", owner=team).owner == team
    append(orders)
    pump(orders, "everybodys")
    (event,) = login("event_store_consumer").stream_events("everybodys")
    login("event_store_consumer").ack_event("everybodys", event.decider_id, event.offset)
    refusal(NotViewOwner, lambda: login("event_store_consumer").stream_events("theirs"))
    assert login(team).register_view("theirs").owner == team
    # operators own a view with a dropped role, and may give it away
    orders.connection.execute(f"drop role {team}".encode())
    refusal(NotViewOwner, lambda: consumer.stream_events("theirs"))
    operator.register_view("theirs", owner="event_store_consumer")
    assert len(consumer.stream_events("theirs")) == 1


def test_the_role_that_set_role_chose_counts_and_not_the_login(orders: PlatformStore, login: Login) -> None:
    """As with PostgREST and others, which log in once, mostly with many privileges, for all users' requests."""
    mine, other = (str(value(login("event_store_consumer").connection, "select session_user::text")) for _ in range(2))
    admin = value(orders.connection, "select session_user::text")

    def request(user: str, call: Callable[[], object]) -> object:
        with orders.connection.transaction():
            orders.connection.execute(f"set local role {user}".encode())
            return call()

    request(mine, lambda: orders.register_view("v", max_attempts=3))
    assert owner(orders, "v") == mine
    refused = refusal(NotViewOwner, lambda: request(other, lambda: orders.stream_events("v")))
    assert f"{other} is no member" in str(refused.detail)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        request(mine, lambda: orders.unregister_view("v"))
    assert request(mine, lambda: orders.stream_events("v")) == []
    (entry,) = orders.audit_log("v")
    assert (entry.done_by, entry.detail["set_role"]) == (admin, mine)
    orders.unregister_view("v")
    assert "set_role" not in orders.audit_log("v")[0].detail


def test_members_of_the_role_share_a_view_and_operators_may_do_all(
    orders: PlatformStore, login: Login, team: str
) -> None:
    append_to(orders, "a", "b")
    ours, mate, operator = login(team), login(team), login("event_store_owner")
    ours.register_view("v", "-infinity", owner=team)
    pump(orders, "v")
    for store in (mate, operator):
        (event,) = store.lease_events("v")
        store.ack_event("v", event.decider_id, event.offset, event.lease_token)
        assert store.register_view("v", max_attempts=7).owner == team
    operator.seek_view("v", "RESET_TO_EARLIEST")
    pump(orders, "v")
    assert len(mate.stream_events("v", 10)) == 2


def test_nobody_names_a_role_that_is_unknown_or_not_theirs(orders: PlatformStore, login: Login, team: str) -> None:
    consumer = login("event_store_consumer")
    for name in (team, "event_store_owner"):
        assert f"role {name}" in str(refusal(NotViewOwner, partial(consumer.register_view, "v", owner=name)).detail)
    assert "no role" in str(refusal(Malformed, lambda: consumer.register_view("v", owner="no_such_role")).detail)
    assert not orders.is_registered("v")
    consumer.register_view("v")
    refusal(NotViewOwner, lambda: consumer.register_view("v", owner=team))


def test_another_consumer_sees_no_url_and_neither_the_locks_nor_the_leases(orders: PlatformStore, login: Login) -> None:
    append_to(orders, "a")
    url = "https://example.com/hook?key=secret"
    holder, other = login("event_store_consumer"), login("event_store_consumer")
    holder.register_view("v", "-infinity", edge_function_url=url)
    holder.register_view("b", "-infinity", mode="bulk")
    leases = holder.claim_batch("b", "run 1")
    refused = refusal(NotViewOwner, lambda: other.register_view("v", edge_function_url="https://example.org/mine"))
    assert "is no member" in str(refused.detail)
    assert {poll.view: poll.edge_function_url for poll in other.poll_views()} == {"v": None, "b": None}
    assert {poll.view: poll.edge_function_url for poll in holder.poll_views()} == {"v": url, "b": None}
    # any consumer may dispatch, as the sequencer does for every view
    other.dispatch_events("v")
    # but only an owner may note why dispatching failed
    for store, noted in ((other, None), (holder, "no")):
        store.fail_dispatch("v", "no")
        assert value(orders.connection, "select error from event_store.dispatches where view = 'v'") == noted
    assert other.release_owner("run 1") == 0
    assert other.extend_owner("run 1", 60) == 0
    assert other.owned_leases("run 1") == {}
    assert other.locked_streams("run 1") == []
    assert holder.owned_leases("run 1") == orders.owned_leases("run 1") == {"b": leases}
    # releasing leases is audited; a refused call keeps no lock, even in a transaction that continues
    assert [orders.release_owner("run 1") for _ in range(2)] == [1, 0]
    (ended,) = [entry for entry in orders.audit_log("b") if entry.operation == "release_owner"]
    assert ended.detail == {"owner": "run 1", "partitions": [lease.partition for lease in leases]}
    other.connection.autocommit = False
    with suppress(NotViewOwner), other.connection.transaction():
        other.register_view("v", max_attempts=1)
    orders.connection.execute("set lock_timeout = '30s'")
    orders.unregister_view("v")
    other.connection.rollback()


def test_another_consumer_changes_and_consumes_nothing_of_a_view(orders: PlatformStore, login: Login) -> None:
    """With each function that docs/who_may_do_what.md marks `own`."""
    append_to(orders, "a")
    holder, other = login("event_store_consumer"), login("event_store_consumer")
    holder.register_view("v", "-infinity")
    holder.register_view("b", "-infinity", mode="bulk")
    pump(orders, "v")
    (event,) = holder.lease_events("v")
    leases = holder.claim_batch("b", "run 1")
    answer = ("v", event.decider_id, event.offset, event.lease_token)
    for attempt in (
        partial(other.register_view, "v", max_attempts=1),
        partial(other.attach_consumer, "v", "c"),
        partial(other.detach_consumer, "v", "c"),
        partial(PushStore(other.connection).push_options, "v"),
        partial(other.stream_events, "v"),
        partial(other.ack_event, *answer),
        partial(other.ack_events, "v", [event.offset], [event.lease_token]),
        partial(other.nack_event, *answer),
        partial(other.schedule_nack_event, "v", event.decider_id, 5, event.offset, event.lease_token),
        partial(other.fail_event, *answer[:3], "no", event.lease_token),
        partial(other.extend_lock, *answer[:3], 60, event.lease_token),
        partial(other.claim_batch, "b", "run 2"),
        partial(other.claim_partition, "b", leases[0].partition, "run 2"),
        partial(other.claim_views, ["b"], "run 2"),
        partial(other.locked_partitions, "b", leases),
        partial(other.read_batch, "b", leases[0]),
        partial(other.fail_streams, "b", leases[0], [StreamFailure("order", "a", "no")]),
        partial(other.commit_batch, "b", leases),
        partial(other.extend_lease, "b", leases),
        partial(other.release_batch, "b", leases),
        partial(other.pass_over_unwanted, "b"),
    ):
        assert "is no member" in str(refusal(NotViewOwner, attempt).detail)
    assert holder.owned_leases("run 1") == {"b": leases}
    holder.ack_event(*answer)


def test_readers_of_tables_do_not_see_urls(orders: PlatformStore, login: Login) -> None:
    url = "https://example.com/hook?key=secret"
    orders.register_view("v", edge_function_url=url)
    reader, owner = login("event_store_reader").connection, login("event_store_owner").connection
    for query in (
        "select edge_function_url from event_store.views",
        "select * from event_store.views",
        "select v::text from event_store.views v",
        "select 1 from event_store.views where edge_function_url like '%secret%'",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute(query.encode())
    assert rows(reader, "select view, mode, owner from event_store.views") == [("v", "rows", "event_store_consumer")]
    assert "secret" not in str(PlatformStore(reader).poll_views())
    assert value(owner, "select edge_function_url from event_store.views") == url


def test_no_lease_outlasts_an_hour(orders: PlatformStore, login: Login) -> None:
    seconds = 3601
    append(orders)
    consumer = login("event_store_consumer")
    consumer.register_view("v", "-infinity")
    consumer.register_view("b", "-infinity", mode="bulk")
    refusal(Malformed, lambda: consumer.register_view("v", lock_timeout_s=seconds))
    refusal(Malformed, lambda: consumer.lease_events("v", 1, seconds))
    refusal(Malformed, lambda: consumer.claim_batch("b", "me", lease_s=seconds))
    refusal(Malformed, lambda: consumer.claim_partition("b", 0, "me", lease_s=seconds))
    (event,) = consumer.lease_events("v", 1, 3600)
    refusal(Malformed, lambda: consumer.extend_lock("v", "o-1", event.offset, seconds))
    refusal(Malformed, partial(consumer.extend_lease, "b", consumer.claim_batch("b", "me", lease_s=3600), seconds))


def test_every_change_of_settings_is_written_down(orders: PlatformStore, login: Login) -> None:
    consumer = login("event_store_consumer")
    user = value(consumer.connection, "select session_user::text")
    consumer.register_view("v", edge_function_url="https://user:pw@example.com:8443/hook?key=secret")
    consumer.register_view("v", events=["paid"], max_attempts=9)
    consumer.register_view("v", events=["paid"])  # no change
    consumer.register_view("v", edge_function_url="https://example.com:8443/hook?key=other")
    entries = list(reversed(orders.audit_log("v")))
    assert {(e.operation, e.done_by) for e in entries} == {("register_view", user)}
    registered, changed, moved = (e.detail for e in entries)
    assert registered["registered"]["owner"] == user
    assert registered["registered"]["edge_function_url"].startswith("https://example.com:8443 (")
    assert changed["changed"] == {"events": {"from": None, "to": ["paid"]}, "max_attempts": {"from": 5, "to": 9}}
    assert moved["changed"]["edge_function_url"]["from"] != moved["changed"]["edge_function_url"]["to"]
    assert "secret" not in str(entries)
    assert "pw" not in str(entries)


def test_operators_remove_who_took_the_name_of_a_read_models_view(orders: PlatformStore, login: Login) -> None:
    login("event_store_consumer").register_view(Everything.view, mode="bulk")
    operator = login("event_store_owner")
    with pytest.raises(WrongView) as refused:
        ensure_version(operator.connection, Everything)
    assert f"millrace view remove {Everything.view}" in str(refused.value.hint)
    operator.unregister_view(Everything.view)
    ensure_version(operator.connection, Everything)
    assert owner(orders, Everything.view) == "event_store_owner"
