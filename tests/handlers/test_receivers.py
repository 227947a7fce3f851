"""Allowed receivers of pushes, their timeouts, and no credentials of this account in a request."""

import ipaddress
import re
import socket
import ssl
import subprocess
import threading
import tracemalloc
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from millrace.event_store.platform import PlatformStore
from millrace.handlers import push
from millrace.handlers.push import push_events
from millrace.handlers.receivers import Allowed, Answer, Endpoint
from tests.support.factories import rows, start
from tests.support.patience import patience
from tests.support.views.receiver import Receiver, place, pushed, receiver

__all__ = ["pushed", "receiver"]

JSON = {"Content-Type": "application/json"}


def no_content(to: socket.socket) -> None:
    to.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")


@contextmanager
def raw(
    answer: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None
) -> Iterator[tuple[int, list[bytes]]]:
    """Serve connections by hand; yield the port and the received requests."""
    requests: list[bytes] = []

    def serve_one(connection: socket.socket) -> None:
        with connection:
            said = b""
            # read the body too: closing a connection with unread data loses the answer
            while not is_whole(said):
                piece = connection.recv(65536)
                if not piece:
                    raise ConnectionAbortedError
                said += piece
            requests.append(said)
            answer(connection)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            if tls is None:
                serve_one(connection)
                continue
            with suppress(OSError):
                serve_one(tls.wrap_socket(connection, server_side=True))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], requests
        server.shutdown(socket.SHUT_RDWR)
        thread.join(patience())


def is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
    return bool(end) and (length is None or len(body) >= int(length[1]))


def ask(url: str, *listed: str, timeout_s: float = patience()) -> Answer:
    with Endpoint(url, Allowed(listed)) as endpoint:
        return endpoint.post(b"{}", JSON, timeout_s)


def test_secrets_are_sent_and_stand_nowhere(pushed: PlatformStore, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n"
    monkeypatch.setenv("MILLRACE_PUSH_SECRET_KEY", "127.0.0.1 s3/cr@t?#")
    monkeypatch.setenv("MILLRACE_PUSH_SECRET_WORD", "127.0.0.1 p@ss:w/rd")
    with raw(lambda to: to.sendall(refusal)) as (port, requests):
        named = "http://me:${MILLRACE_PUSH_SECRET_WORD}@127.0.0.1:%d/a/${MILLRACE_PUSH_SECRET_KEY}?key=${MILLRACE_PUSH_SECRET_KEY}"
        pushed.register_view("hook", edge_function_url=named % port)
        place(pushed, "a", events=("placed",))
        said: list[str] = []
        push_events(dsn, "hook", budget_s=patience(), idle_s=0, allowed=["127.0.0.1"], on_failure=said.append)
        (sent, *_) = requests
    assert sent.startswith(b"POST /a/s3%2Fcr%40t%3F%23?key=s3%2Fcr%40t%3F%23 HTTP/1.1")
    assert b"authorization: basic " + b64encode(b"me:p@ss:w/rd").lower() in sent.lower()
    both = "select v, k from event_store.views v join event_store.stream_locks k using (view)"
    kept = str(rows(pushed.connection, both))
    assert "HTTP 400" in kept
    for text in (kept, str(said), str(pushed.audit_log())):
        assert [secret for secret in ("cr@t", "cr%40t", "p@ss") if secret in text] == []


def test_no_other_variable_is_sent_and_no_secret_to_another_host() -> None:
    prefix = "MILLRACE_PUSH_SECRET_"
    environ = dict.fromkeys(("PATH", "MILLRACE_DSN", ""), "127.0.0.1 hunter2") | {
        f"{prefix}BARE": "hunter2", f"{prefix}OF_ANOTHER": "hooks.example.com hunter2", f"{prefix}OF_X": "x.0.0.1 127",
    }  # fmt: skip
    named = ("PATH", "MILLRACE_DSN", "", *(f"{prefix}{name}" for name in ("UNSET", "BARE", "OF_ANOTHER")))
    with raw(lambda _: None) as (port, requests):
        for url in (
            *(f"http://127.0.0.1:{port}/${{{name}}}" for name in named),
            f"http://${{{prefix}OF_X}}.0.0.1:{port}/",
            f"http://hooks.example.com:x@127.0.0.1:{port}/${{{prefix}OF_ANOTHER}}",
            "http://127.0.0.1:no-port/",
        ):
            with Endpoint(url, Allowed(["127.0.0.1"]), environ) as endpoint:
                answer = endpoint.post(b"{}", JSON, patience())
            assert (answer.status, requests) == (0, []), url
            assert "hunter2" not in answer.error + answer.body_text
            assert "The URL " in answer.error


# internal addresses in all notations
INWARDS = (
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1",
    "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "::127.0.0.1",
    "::ffff:0:127.0.0.1", "5f00::1", "3fff::1", "3fff:fff::1",
)  # fmt: skip


def test_no_push_goes_inwards_nor_to_another_scheme() -> None:
    for address in INWARDS:
        answer = ask(f"http://[{address}]:9/" if ":" in address else f"http://{address}:9/")
        assert (answer.status, "MILLRACE_PUSH_ALLOW" in answer.error) == (0, True), address
    for url in ("ftp://127.0.0.1/", "file:///etc/passwd", "127.0.0.1:80", "http://", "nonsense"):
        assert ask(url, "127.0.0.1").status == 0, url


def test_public_addresses_and_listed_networks_and_hosts_are_allowed() -> None:
    listed = Allowed(["10.0.0.0/8", "::1", "Receiver.svc.cluster.local"])
    for allowed, addresses in (
        (Allowed(), ("93.184.216.34", "2606:2800:220:1::1")),
        (listed, ("10.9.8.7", "::ffff:10.9.8.7", "::1")),
    ):
        assert all(allowed("somewhere", ipaddress.ip_address(each)) for each in addresses)
    assert listed("receiver.svc.cluster.local", ipaddress.ip_address("192.168.0.9"))
    assert not listed("other.svc.cluster.local", ipaddress.ip_address("192.168.0.9"))


def test_the_address_that_was_judged_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    # a name that resolves to another address each time
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: str, *arguments: object, **options: object) -> list[object]:
        if host == "rebinding.example":
            asked.append(host)
            host = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return list(real(host, *arguments, **options))  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with raw(no_content) as (port, requests):
        assert ask(f"http://rebinding.example:{port}/a?b=c", "127.0.0.1").status == 204
    assert asked == ["rebinding.example"]
    head = requests[0].decode().split("\r\n")
    assert head[0] == "POST /a?b=c HTTP/1.1"
    assert f"Host: rebinding.example:{port}" in head
    # the second time it resolves to an address that is not allowed
    assert "MILLRACE_PUSH_ALLOW" in ask(f"http://rebinding.example:{port}/", "127.0.0.1").error


def test_no_proxy_and_no_netrc_of_this_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login operator password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with raw(no_content) as (port, requests):
        assert ask(f"http://127.0.0.1:{port}/", "127.0.0.1").status == 204
        assert b"authorization" not in requests[0].lower()
        # credentials in the URL itself are sent
        assert ask(f"http://me:secret@127.0.0.1:{port}/", "127.0.0.1").status == 204
        assert b"authorization: Basic bWU6c2VjcmV0" in requests[1]
        assert f"Host: 127.0.0.1:{port}\r\n".encode() in requests[1]


def test_a_receiver_has_the_name_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hooks.example.com"]
    said = ["-addext", "subjectAltName=DNS:hooks.example.com", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make, *said], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setattr("certifi.where", lambda: str(certificate))
    real = socket.getaddrinfo

    def look_up(host: str, *arguments: object, **options: object) -> object:
        return real("127.0.0.1" if host.endswith(".example.com") else host, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with raw(no_content, context) as (port, requests):
        for host, status in (("hooks.example.com", 204), ("other.example.com", 0)):
            assert ask(f"https://{host}:{port}/mails", "127.0.0.1").status == status, host
    # a client that finds another name in the certificate hangs up
    assert len(requests) == 1


def test_a_receiver_that_drips_is_left_at_the_deadline() -> None:
    """Only the deadline ends it: the receiver drips until the answer is complete."""
    head = b"HTTP/1.1 500 No\r\n"
    begins = {b"": 0, b"HTTP/1.1 ": 0, head + b"X-Header: ": 500, head + b"Content-Length: 99999\r\n\r\n": 500}
    for begin, status in begins.items():
        over = threading.Event()

        def drip(to: socket.socket, begin: bytes = begin, over: threading.Event = over) -> None:
            with suppress(OSError):
                to.sendall(begin)
                while not over.wait(0.05):
                    to.sendall(b"x")

        with raw(drip) as (port, _):
            url = f"http://127.0.0.1:{port}/"
            asked = start(lambda url=url: ask(url, "127.0.0.1", timeout_s=0.5))  # type: ignore[misc]
            try:
                assert asked.result(patience()).status == status, begin
            finally:
                over.set()


def test_of_a_gigabyte_the_beginning_is_read() -> None:
    block = b"x" * 65536
    for head in (b"Content-Length: 1073741824", b"Transfer-Encoding: chunked", b"Connection: close"):
        framed = b"10000\r\n" + block + b"\r\n" if b"chunked" in head else block
        sent: list[int] = []

        def flood(to: socket.socket, head: bytes = head, framed: bytes = framed, sent: list[int] = sent) -> None:
            to.sendall(b"HTTP/1.1 400 Bad\r\n" + head + b"\r\n\r\n")
            with suppress(OSError):
                for _ in range(2**30 // len(block)):
                    to.sendall(framed)
                    sent.append(len(block))

        with raw(flood) as (port, _):
            tracemalloc.start()
            try:
                answer = ask(f"http://127.0.0.1:{port}/", "127.0.0.1")
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert answer.error.startswith("HTTP 400 Bad Request, at least 2000 bytes"), head
        assert answer.body_text == "x" * 2000
        # the buffers of two sockets, which the kernel may grow
        assert sum(sent) < 2**30 / 10
        assert peak < 2**20


def test_a_connection_is_kept_and_a_closed_one_renewed(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    serve = receiver.process_request

    def counted(request: socket.socket, address: object) -> None:
        opened.append(address)
        serve(request, address)

    monkeypatch.setattr(receiver, "process_request", counted)
    # a server that speaks 1.0 closes a connection after its answer
    for version, connections in (("HTTP/1.0", 3), ("HTTP/1.1", 4)):
        monkeypatch.setattr(receiver.RequestHandlerClass, "protocol_version", version)
        with Endpoint(receiver.url, Allowed(["127.0.0.1"])) as endpoint:
            assert [endpoint.post(b"{}", JSON, patience()).status for _ in range(3)] == [204] * 3
        assert len(opened) == connections, version
    assert len(receiver.bodies) == 6
    # a server that closes without announcing it has closed the first connection when it answers on the second
    with raw(no_content) as (port, _):
        url = f"http://127.0.0.1:{port}/"
        with Endpoint(url, Allowed(["127.0.0.1"])) as endpoint:
            assert endpoint.post(b"{}", JSON, patience()).status == 204
            assert ask(url, "127.0.0.1").status == 204
            assert endpoint.post(b"{}", JSON, patience()).status == 204


def test_nothing_goes_inside(
    pushed: PlatformStore, dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "RETRY_MS", 60_000)
    place(pushed, "a", events=("placed",))
    assert push_events(dsn, "hook", budget_s=patience(), idle_s=0).events == 0
    assert receiver.bodies == []
    ((error,),) = rows(pushed.connection, "select last_error from event_store.stream_locks")
    assert "MILLRACE_PUSH_ALLOW" in error
