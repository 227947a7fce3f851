"""What a token opens over HTTP, and what it does not: on a real server and a real Postgres."""

import asyncio
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from threading import Event
from typing import LiteralString
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from psycopg import sql

from millrace.errors import Malformed
from millrace.event_store.platform import PlatformStore
from millrace.own_pages import Refused
from millrace.streams import app, tokens
from millrace.streams.tokens import PREFIX, Connections, hash_of, made_token
from tests.streams.served import Served
from tests.support.factories import Connect, rows, start, terminate, value
from tests.support.logins import Login
from tests.support.patience import patience, wait_until

MODEL = "/models/streamed"


def grant(connection: psycopg.Connection, what: str, login: str) -> None:
    connection.execute(f"grant usage on schema read_models to {login}".encode())
    connection.execute(f"grant {what} to {login}".encode())


def age(store: PlatformStore, seconds: int) -> None:
    """Let all tokens and sessions be as old as if so much time had passed; only the migrator's clock can be moved."""
    store.connection.execute(
        "update event_store.stream_tokens set expires_at = expires_at - make_interval(secs => %s)", (seconds,)
    )


@pytest.fixture
def shop(orders: PlatformStore, served: Served, login: Login) -> str:
    """Return a login that reads one read model, and no event."""
    assert served
    user = login().info.user
    grant(orders.connection, "select on read_models.streamed", user)
    return user


def answer(response: httpx.Response) -> tuple[int, str]:
    """Return status and text of a refusal, which nothing may keep."""
    assert response.headers["cache-control"] == "no-store"
    assert ("www-authenticate" in response.headers) is (response.status_code == 401)
    return response.status_code, response.text


def test_a_token_reads_what_its_login_may_select_and_nothing_else(
    served: Served, shop: str, login: Login, orders: PlatformStore
) -> None:
    token, reader = served.token(shop), served.token(login("event_store_reader").info.user)
    read = served.get(MODEL, token)
    assert (read.status_code, read.json()) == (200, [])
    assert read.headers["cache-control"] == "no-store"
    for path in ("/views/streamed", "/streams/order/o-1"):
        assert served.get(path, reader).status_code in {200, 404}
        status, text = answer(served.get(path, token))
        assert (status, "no member of event_store_reader" in text) == (403, True)
    # another login's model, one that does not exist, and tables that are no models are answered alike
    for name in ("looking", "nothing", "streamed_state", "declarations", "Streamed", "x%00y", "%ff", "a/b", "x" * 5000):
        status, text = answer(served.get(f"/models/{name}", token))
        assert (status, "may not select from a read model" in text) == (403, True), name
        assert len(text) < 300
    # rights are asked anew for each request
    orders.connection.execute(f"revoke select on read_models.streamed from {shop}".encode())
    assert served.get(MODEL, token).status_code == 403


def test_a_column_of_the_feed_without_a_grant_is_missed_by_name(
    served: Served, login: Login, orders: PlatformStore
) -> None:
    user = login().info.user
    token = served.token(user)
    grant(orders.connection, "select (order_id, customer) on read_models.streamed", user)
    for path in (MODEL, f"{MODEL}/o-1"):
        assert answer(served.get(path, token)) == (
            403,
            f"{user} may not select placed, which the feed of read model streamed tells.\n",
        )
    grant(orders.connection, "select (placed) on read_models.streamed", user)
    assert served.get(MODEL, token).status_code == 200
    # what other models give is not told
    grant(orders.connection, 'select (invoice_id, "order") on read_models.looking', user)
    assert served.get("/models/looking", token).status_code == 200
    grant(orders.connection, "select on read_models.by_customer", user)
    assert answer(served.get("/models/by_customer", token)) == (403, "Read model by_customer has no feed.\n")
    # a grant below a schema that the login may not use is none
    orders.connection.execute(f"revoke usage on schema read_models from {user}".encode())
    assert served.get(MODEL, token).status_code == 403


def test_row_security_of_any_table_that_a_model_reads_refuses_it_by_name(
    served: Served, login: Login, orders: PlatformStore
) -> None:
    token = served.token(login("event_store_reader").info.user)
    assert served.get("/models/looking", token).status_code == 200
    orders.connection.execute("alter table read_models.streamed_state enable row level security")
    for model in ("streamed", "looking"):
        status, text = answer(served.get(f"/models/{model}", token))
        assert (status, "read_models.streamed_state has row security" in text) == (403, True)


def test_a_token_ends_when_it_expires_or_its_login_may_no_longer_read(
    served: Served, shop: str, orders: PlatformStore
) -> None:
    admin = orders.connection
    token, longer = served.token(shop, days=1), served.token(shop, days=3)
    for change, back, fault in (
        ("alter role {} nologin", "alter role {} login", "is no login"),
        ("alter role {} superuser", "alter role {} nosuperuser", "is a superuser"),
        ("grant event_store_owner to {}", "revoke event_store_owner from {}", "a member of event_store_owner"),
    ):
        admin.execute(change.format(shop).encode())
        status, text = answer(served.get(MODEL, token))
        assert (status, fault in text) == (401, True)
        assert [fault in (each.fault or "") for each in served.store.stream_tokens()] == [True, True]
        with pytest.raises(Malformed, match=fault):
            served.token(shop)
        admin.execute(back.format(shop).encode())
    assert served.get(MODEL, token).status_code == 200
    age(orders, 86_400 + 60)
    assert answer(served.get(MODEL, token)) == (401, "This token gives nothing. It has expired.\n")
    assert served.get(MODEL, longer).status_code == 200


def test_a_login_that_may_not_connect_or_is_gone_has_no_token(
    served: Served, login: Login, orders: PlatformStore
) -> None:
    admin, user = orders.connection, login().info.user
    token = served.token(user)
    database = sql.Identifier(admin.info.dbname)
    admin.execute(sql.SQL("grant connect on database {} to event_store_owner").format(database))
    admin.execute(sql.SQL("revoke connect on database {} from public").format(database))
    assert "may not connect" in answer(served.get(MODEL, token))[1]
    admin.execute(sql.SQL("grant connect on database {} to public").format(database))
    admin.execute("create role gone_soon login")
    token = served.token("gone_soon")
    admin.execute("drop role gone_soon")
    assert "gone_soon is no login" in answer(served.get(MODEL, token))[1]
    for wrong in ("", "nobody_of_this_name", "x" * 64, "postgres", "event_store_reader", "pg_monitor"):
        with pytest.raises(Malformed):
            served.token(wrong)
    for arguments in ((b"short", user), (b"0" * 32, user, ""), (b"0" * 32, user, "x" * 201), (b"0" * 32, user, "x", 0)):
        with pytest.raises(Malformed):
            served.store.add_stream_token(*arguments)


def test_guessed_torn_and_enormous_tokens_are_refused_alike(served: Served, shop: str) -> None:
    token = served.token(shop)
    for wrong in (
        made_token(),
        token[:-1],
        token + "x",
        token.upper(),
        PREFIX,
        "Bearer",
        token.replace("_", " ", 1),
    ):
        assert answer(served.get(MODEL, wrong))[0] == 401, wrong
    assert answer(served.get(MODEL))[0] == 401
    assert answer(served.get(MODEL, Authorization=f"Basic {token}"))[0] == 401
    assert answer(served.get(MODEL, "x" * 20_000))[0] == 431
    # the hash of a token is none
    assert answer(served.get(MODEL, hash_of(token).hex()))[0] == 401
    assert raw(served, f"Authorization: Bearer {token}\r\nAuthorization: Bearer {made_token()}") == 400
    assert raw(served, f"Authorization: Bearer {PREFIX}{'x' * 1_000_000}") in {400, 431, None}
    assert served.get(MODEL, token).status_code == 200


def raw(served: Served, *lines: str) -> int | None:
    """Send one request by hand and return the status; None if the server closed before it had read all."""
    where = urlsplit(served.url)
    head = "\r\n".join([f"GET {MODEL} HTTP/1.1", f"Host: {where.netloc}", *lines, "Connection: close", "", ""])
    with (
        suppress(BrokenPipeError, ConnectionResetError),
        socket.create_connection((where.hostname, where.port), patience()) as connection,
    ):
        connection.sendall(head.encode())
        return int(connection.makefile("rb").readline().split()[1])
    return None


def test_a_token_in_a_url_is_refused_even_a_good_one(served: Served, shop: str) -> None:
    token = served.token(shop)
    for path in (
        f"{MODEL}?token={token}", f"{MODEL}?access_token=x", f"{MODEL}?offset={token}", f"/models/{token}", f"/session?token={token}",
        f"{MODEL}?token",
    ):  # fmt: skip
        for shown in (token, None):
            status, text = answer(served.get(path, shown))
            assert (status, "A token in a URL is refused" in text) == (400, True), path
            assert token not in text


FOREIGN: tuple[tuple[dict[str, str], int], ...] = (
    ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Origin": "http://127.0.0.1:1"}, 403),
    ({"Sec_Fetch_Site": "cross-site"}, 403), ({"Sec_Fetch_Site": "same-site"}, 403),
    ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}, 403),
    ({"Host": "evil.example"}, 421), ({"Host": "127.0.0.1:1"}, 421),
)  # fmt: skip


def test_foreign_pages_and_names_read_nothing_with_a_token_or_a_cookie(served: Served, shop: str) -> None:
    token = served.token(shop)
    cookie = served.get("/session", token).headers["set-cookie"].partition(";")[0]
    for path in (MODEL, "/session"):
        for headers, status in FOREIGN:
            assert answer(served.get(path, token, **headers))[0] == status, headers
            assert answer(served.get(path, Cookie=cookie, **headers))[0] == status, headers
    for headers in ({"Origin": served.url}, {"Sec_Fetch_Site": "same-origin"}, {"Host": "proxy.example.com"}):
        assert served.get(MODEL, token, **headers).status_code == 200
        assert served.get(MODEL, Cookie=cookie, **headers).status_code == 200


def test_a_cookie_is_good_for_a_quarter_of_an_hour_and_cannot_renew_itself(
    served: Served, shop: str, orders: PlatformStore
) -> None:
    given = served.get("/session", served.token(shop))
    assert (given.status_code, given.content, given.headers["cache-control"]) == (204, b"", "no-store")
    cookie, *attributes = given.headers["set-cookie"].split("; ")
    port = urlsplit(served.url).port
    assert cookie.startswith(f"millrace_streams_{port}={PREFIX}")
    assert {*attributes} == {"HttpOnly", "Max-Age=900", "Path=/", "SameSite=strict"}
    # a proxy speaks TLS
    assert "; Secure" in served.get("/session", served.token(shop), Host="proxy.example.com").headers["set-cookie"]
    assert served.get(MODEL, Cookie=cookie).status_code == 200
    secret = cookie.partition("=")[2]
    # it is no bearer, and a bearer is no cookie
    assert answer(served.get("/session", Cookie=cookie))[0] == 401
    assert answer(served.get("/session", secret))[0] == 401
    assert answer(served.get(MODEL, secret))[0] == 401
    assert answer(served.get(MODEL, Cookie=f"millrace_streams_{port}={served.token(shop)}"))[0] == 401
    # one of another port or another server, and two of the same name
    assert answer(served.get(MODEL, Cookie=f"millrace_streams_1={secret}"))[0] == 401
    assert answer(served.get(MODEL, Cookie=f"millrace_streams_{port}={made_token()}"))[0] == 401
    assert answer(served.get(MODEL, Cookie=f"millrace_streams_{port}={made_token()}; {cookie}"))[0] == 401
    age(orders, 16 * 60)
    assert answer(served.get(MODEL, Cookie=cookie))[0] == 401
    # the next session removes those that are over
    served.get("/session", served.token(shop, days=30))
    assert value(orders.connection, "select count(*) from event_store.stream_tokens where session_of is not null") == 1


def test_a_session_never_outlives_its_token(served: Served, shop: str, orders: PlatformStore) -> None:
    token = served.token(shop, days=1)
    age(orders, 86_400 - 60)
    cookie = served.get("/session", token).headers["set-cookie"]
    assert 0 < int(cookie.partition("Max-Age=")[2].partition(";")[0]) <= 60
    age(orders, 60)
    assert answer(served.get(MODEL, Cookie=cookie.partition(";")[0]))[0] == 401


def test_a_token_cannot_fill_the_store_with_cookies(served: Served, shop: str, orders: PlatformStore) -> None:
    token, other = served.token(shop), served.token(shop)
    many: LiteralString = """
        insert into event_store.stream_tokens (hash, session_of, login, made_at, expires_at)
        select sha256(n::text::bytea), token_id, login, made_at, made_at + interval '15 minutes'
        from (select * from event_store.stream_tokens order by token_id limit 1) t, generate_series(1, 9999) n
    """
    orders.connection.execute(many)
    assert served.get("/session", token).status_code == 204
    assert answer(served.get("/session", token)) == (429, "This token has too many cookies: use another token.\n")
    assert served.get("/session", other).status_code == 204
    age(orders, 16 * 60)
    assert served.get("/session", token).status_code == 204


@contextmanager
def following(served: Served, **headers: str) -> Iterator[Iterator[str]]:
    """Follow a read model until the connection is closed, as an answer that has no end."""
    url = f"{served.url}{MODEL}?offset=now&live=sse"
    with httpx.stream("GET", url, headers=headers, timeout=patience(), trust_env=False) as followed:
        lines = followed.iter_lines()
        assert next(lines) == "retry: 1000"
        yield lines


def require_closed(*followed: Iterator[str]) -> None:
    for lines in followed:
        with pytest.raises(httpx.RemoteProtocolError):
            deque(lines)


def test_a_revoked_token_ends_its_connections_and_sessions_and_no_others(
    served: Served, shop: str, capfd: pytest.CaptureFixture[str]
) -> None:
    token, other = served.token(shop), served.token(shop)
    cookie = served.get("/session", token).headers["set-cookie"].partition(";")[0]
    with (
        following(served, Authorization=f"Bearer {token}") as direct,
        following(served, Cookie=cookie) as browser,
        following(served, Authorization=f"Bearer {other}") as rest,
    ):
        first, second = served.store.stream_tokens()
        # a word of any login ends nothing
        for payload in (str(second.token_id), "x", "-1", "9" * 5000, ""):
            served.store.connection.execute("select pg_notify('event_store_stream_tokens', %s)", (payload,))
        assert served.store.revoke_stream_token(first.token_id, "it was in a log")
        assert not served.store.revoke_stream_token(first.token_id)
        require_closed(direct, browser)
        assert answer(served.get(MODEL, token)) == (401, "This token gives nothing. It is revoked.\n")
        assert answer(served.get(MODEL, Cookie=cookie))[0] == 401
        assert served.get(MODEL, other).status_code == 200
        served.store.revoke_stream_token(second.token_id)
        require_closed(rest)
    assert "Traceback" not in capfd.readouterr().err


def test_a_token_that_is_revoked_before_it_is_answered_is_refused(
    served: Served, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = served.token(shop)
    asked = Event()

    async def polled(*_: object) -> None:
        asked.set()
        await asyncio.sleep(patience())

    monkeypatch.setattr(app, "_polled", polled)
    waiting = start(lambda: served.get(f"{MODEL}?offset=now&live=long-poll", token))
    assert asked.wait(patience())
    served.store.revoke_stream_token(served.store.stream_tokens()[0].token_id)
    assert answer(waiting.result()) == (401, "It is revoked.\n")


def test_connections_end_and_none_opens_while_revocations_are_not_heard(
    served: Served, shop: str, connect: Connect
) -> None:
    token, admin = served.token(shop), connect()
    with following(served, Authorization=f"Bearer {token}") as followed:
        query = "select pid from pg_stat_activity where datname = current_database() and wait_event = 'ClientRead' and query ~ 'listen event_store_stream|stream_tokens'"
        ((pid,),) = rows(admin, query)
        terminate(admin, pid)
        require_closed(followed)
    wait_until(lambda: served.get(MODEL, token).status_code == 200, "it hears again")
    with pytest.raises(Refused, match="does not answer") as unheard:
        asyncio.run(held(Connections(), 1))
    assert unheard.value.status == 503


async def held(connections: Connections, token_id: int, number: int = 1) -> None:
    async with AsyncExitStack() as opened:
        for _ in range(number):
            await opened.enter_async_context(connections.open(token_id))


def test_a_token_has_some_connections_at_once_and_others_have_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST_CONNECTIONS", 2)
    connections = Connections()
    connections.hears.set()
    for _ in range(2):
        asyncio.run(held(connections, 1, 2))
        with pytest.raises(Refused, match="the most at once") as refused:
            asyncio.run(held(connections, 1, 3))
        assert refused.value.status == 429

    async def both() -> None:
        async with connections.open(1), connections.open(1), connections.open(2):
            pass

    asyncio.run(both())


def test_bytes_beyond_a_second_wait_also_in_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST_BYTES_A_SECOND", 1000)
    connections = Connections()
    connections.hears.set()

    async def spent() -> None:
        now = asyncio.get_running_loop().time
        began = now()
        for size in (900, 200, 100):
            async with connections.open(1) as connection:
                await connection.spend(size)
        # 1200 bytes: a second's at once, and the others after it; a busy machine takes longer
        assert now() - began >= 0.19

    asyncio.run(spent())


def test_what_operators_do_with_tokens_is_written_down_without_secrets(
    served: Served, shop: str, orders: PlatformStore
) -> None:
    token = served.token(shop)
    (made,) = served.store.stream_tokens()
    assert (made.name, made.login, made.last_used_at, made.fault) == ("a test", shop, None, None)
    assert (made.expires_at - made.made_at).days == 90
    served.get(MODEL, token)
    (used,) = served.store.stream_tokens()
    assert used.last_used_at is not None
    # once a minute is enough
    served.get(MODEL, token)
    assert served.store.stream_tokens() == [used]
    served.store.revoke_stream_token(made.token_id, "it was in a log")
    written = rows(
        orders.connection, "select done_by, operation, reason, detail from event_store.audit_log order by audit_id"
    )
    operator = served.store.connection.info.user
    assert written[-2:] == [
        (operator, "add_stream_token", None, {"token_id": made.token_id, "login": shop, "name": "a test", "days": 90}),
        (operator, "revoke_stream_token", "it was in a log", {"token_id": made.token_id}),
    ]
    stored = value(orders.connection, "select string_agg(t::text, '') from event_store.stream_tokens t")
    assert token not in stored
    assert hash_of(token).hex() in stored
