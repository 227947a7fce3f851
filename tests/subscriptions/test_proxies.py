"""Pushes through a proxy, where an operator names one: to the address that was judged, and to public ones only."""

import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import SecretStr

from millrace.resources.alerts.receiver import alert_settings
from millrace.resources.event_store import EventStore
from millrace.resources.settings import Settings
from millrace.resources.subscriptions.push import push_events
from millrace.resources.subscriptions.receivers import Allowed, Answer, Endpoint
from tests.subscriptions.test_receivers import JSON, raw
from tests.support.factories import append, pump, register_orders
from tests.support.patience import patience

PUBLIC = "93.184.216.34"
OPENED, DONE = b"HTTP/1.0 200 Connection established\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let hosts of example.com have a public address; return the names that are looked up."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def look_up(host: str, port: int, family: int = 0, type: int = 0) -> object:  # noqa: A002 - as the real one
        asked.append(host)
        return real(PUBLIC if host.endswith(".example.com") else host, port, family, type)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


def ask(url: str, proxy: str | None, *listed: str) -> Answer:
    with Endpoint(url, Allowed(listed), proxy=proxy) as endpoint:
        return endpoint.post(b"{}", JSON, patience())


def opened(connection: socket.socket) -> bytes:
    """Act as a proxy and the receiver behind it; return what the receiver was sent."""
    connection.sendall(OPENED)
    said = b""
    while not said.endswith(b"}"):
        said += connection.recv(65536)
    connection.sendall(DONE)
    return said


def test_a_proxy_is_told_the_address_that_was_judged(names: list[str]) -> None:
    sent: list[bytes] = []
    with raw(lambda connection: sent.append(opened(connection))) as (port, requests):
        answer = ask("http://hooks.example.com:8080/mails", f"http://me:s3%40cret@127.0.0.1:{port}")
    assert answer.status == 204
    assert requests[0].startswith(f"CONNECT {PUBLIC}:8080 HTTP/1.".encode())
    assert b"proxy-authorization: basic bWU6czNAY3JldA==" in requests[0].replace(b"Basic", b"basic").replace(
        b"Proxy-Authorization", b"proxy-authorization"
    )
    assert sent[0].startswith(b"POST /mails HTTP/1.1")
    assert b"Host: hooks.example.com:8080" in sent[0]
    assert b"proxy-authorization" not in sent[0].lower()
    assert names.count("hooks.example.com") == 1


def test_behind_a_proxy_a_receiver_still_shows_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hooks.example.com"]
    said = ["-addext", "subjectAltName=DNS:hooks.example.com", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make, *said], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setattr("certifi.where", lambda: str(certificate))

    def encrypted(connection: socket.socket) -> None:
        connection.sendall(OPENED)
        # one that sees another name than it asked for hangs up
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as inner:
            said = b" "
            while said and not said.endswith(b"{}"):
                said = inner.recv(65536)
            inner.sendall(DONE)

    with raw(encrypted) as (port, requests):
        for host, status in (("hooks.example.com", 204), ("other.example.com", 0)):
            assert ask(f"https://{host}/mails", f"http://127.0.0.1:{port}").status == status, host
    assert [request.startswith(f"CONNECT {PUBLIC}:443 HTTP/1.".encode()) for request in requests] == [True] * 2


def test_what_is_only_listed_is_reached_without_the_proxy() -> None:
    with raw(lambda to: to.sendall(DONE)) as (port, requests):
        assert ask(f"http://127.0.0.1:{port}/", "http://127.0.0.1:1", "127.0.0.1").status == 204
    assert requests[0].startswith(b"POST / HTTP/1.1")


def test_a_proxy_is_never_asked_for_an_address_that_pushes_may_not_go_to() -> None:
    with raw(lambda _: None) as (port, requests):
        for url in ("http://127.0.0.1/", "http://169.254.169.254/", "http://[::1]/", "http://10.0.0.1/"):
            answer = ask(url, f"http://127.0.0.1:{port}")
            assert (answer.status, "MILLRACE_PUSH_ALLOW" in answer.error) == (0, True)
    assert requests == []


def test_without_the_setting_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with raw(lambda _: None) as (port, requests):
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        with Endpoint("https://hooks.example.com/", Allowed()) as endpoint:
            connecting: list[tuple[str, int]] = []

            def connect(_: socket.socket, place: tuple[str, int]) -> None:
                connecting.append(place)
                raise ConnectionRefusedError

            monkeypatch.setattr(socket.socket, "connect", connect)
            assert endpoint.post(b"{}", JSON, patience()).status == 0
        monkeypatch.undo()
    assert connecting == [(PUBLIC, 443)]
    assert requests == []


def test_a_proxy_that_refuses_is_no_answer_of_the_receiver() -> None:
    def refuse(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    for proxy_says in (refuse, socket.socket.close):
        with raw(proxy_says) as (port, _):
            answer = ask("http://hooks.example.com/", f"http://127.0.0.1:{port}")
        assert (answer.status, answer.error) == (0, "No answer."), proxy_says


def test_what_is_no_proxy_is_refused_and_not_quoted() -> None:
    for proxy in ("https://h:1", "socks5://h:1", "h:1", "http://h", "http://me:hunter2@h:port"):
        answer = ask("http://hooks.example.com/", proxy)
        assert (answer.status, answer.error.startswith("MILLRACE_PUSH_PROXY is none of")) == (0, True), proxy
        assert "hunter2" not in answer.said


def test_pushes_and_alerts_take_it_from_one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_PUSH_PROXY", "http://me:hunter2@proxy.example.com:3128")
    settings = Settings(alert_url=SecretStr("https://hooks.example.com/x"), alert_format="slack")
    assert settings.push_proxy_url == "http://me:hunter2@proxy.example.com:3128"
    found = alert_settings(settings)
    assert found is not None
    assert found.proxy == settings.push_proxy_url
    assert "hunter2" not in repr(found) + repr(settings)


def test_a_drain_of_a_view_pushes_through_the_proxy(store: EventStore, dsn: str) -> None:
    register_orders(store).register_view("hook", "-infinity", edge_function_url="http://hooks.example.com/mails")
    append(store)
    pump(store, "hook")
    sent: list[bytes] = []
    with raw(lambda connection: sent.append(opened(connection))) as (port, requests):
        proxy = f"http://127.0.0.1:{port}"
        assert push_events(dsn, "hook", budget_s=patience(), idle_s=0, proxy=proxy).events == 1
    assert requests[0].startswith(f"CONNECT {PUBLIC}:80 HTTP/1.".encode())
    assert sent[0].startswith(b"POST /mails HTTP/1.1")
