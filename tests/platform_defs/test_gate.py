"""Which requests the UI answers, including raw requests that no browser would send."""

import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from millrace.platform_defs.dagster_internals.web import gated
from tests.support.browsing.ui import PAUSE, PAUSED, Ui, running_ui
from tests.support.patience import patience

TOKEN = "a-token-of-this-test"
JSON = "application/json"
PROTOCOL = Subprotocol("graphql-ws")
MUTATION = f'{{"query": "{PAUSE}"}}'


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    with running_ui(tmp_path_factory.mktemp("ui"), hosts="millrace.example.com, tunnel.example.com:8443") as ui:
        yield ui


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    with running_ui(tmp_path_factory.mktemp("locked"), token=TOKEN) as ui:
        yield ui


def send(ui: Ui, method: str = "POST", path: str = "/graphql", body: str = MUTATION, **headers: str) -> int:
    """Send one request by hand, with the headers of a script unless others are given, and return the status."""
    told = {
        "Host": f"127.0.0.1:{ui.port}",
        "Content-Type": JSON,
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    lines = [f"{name}: {value}" for name, values in told.items() for value in values.split("\n") if value]
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, f"Content-Length: {len(body)}", "Connection: close"])
    with socket.create_connection(("127.0.0.1", ui.port), patience()) as connection:
        connection.sendall(f"{head}\r\n\r\n{body}".encode())
        answer = connection.makefile("rb").read()
    return int(answer.split()[1])


def test_names_of_this_machine_and_listed_ones_are_answered(ui: Ui) -> None:
    ask = f'{{"query": "{PAUSED}"}}'
    for host in ("127.0.0.1", "localhost", "LocalHost", "[::1]"):
        assert send(ui, body=ask, Host=f"{host}:{ui.port}") == 200
    assert send(ui, body=ask, Content_Type="application/json; charset=utf-8") == 200
    for host in ("millrace.example.com", "millrace.example.com:80", "tunnel.example.com:8443"):
        assert send(ui, "GET", "/server_info", "", Host=host) == 200
    # a proxy speaks TLS to the browser, and forwards its own name or replaces it by ours
    for host in ("millrace.example.com", f"127.0.0.1:{ui.port}"):
        assert send(ui, "GET", "/server_info", "", Host=host, Origin="https://millrace.example.com") == 200
    for host in ("tunnel.example.com", "evil.example", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example", "[::1]"):
        assert send(ui, Host=host) == 421
    assert send(ui, Host="") == 400
    assert send(ui, Host=f"127.0.0.1:{ui.port}\nevil.example") == 400
    assert not ui.was_changed()


NO_POST_OF_JSON: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("GET", f"/graphql?query={quote(PAUSE)}", {"Content_Type": ""}),
    ("GET", f"/graphql/?query={quote(PAUSE)}", {"Content_Type": JSON}),
    ("HEAD", f"/graphql?query={quote(PAUSE)}", {"Content_Type": ""}),
    ("POST", f"/graphql?query={quote(PAUSE)}", {"Content_Type": "application/x-www-form-urlencoded"}),
    ("POST", f"/graphql?query={quote(PAUSE)}", {"Content_Type": "multipart/form-data; boundary=x"}),
    ("POST", "/graphql", {"Content_Type": "text/plain"}),
    ("POST", "/graphql", {"Content_Type": "text/plain; application/json"}),
    ("POST", "/graphql", {"Content_Type": "application/json\ntext/plain"}),
    ("POST", "/graphql", {"Content_Type": "application/graphql"}),
    ("POST", "/graphql", {"Content_Type": ""}),
    ("PUT", "/graphql", {}),
    ("OPTIONS", "/graphql", {}),
    ("POST", "/report_asset_materialization/greeting", {}),
    ("POST", "/report_asset_materialization/greeting", {"Authorization": "Bearer of-what"}),
    ("POST", "//report_asset_check/greeting", {}),
    ("POST", "/report_asset_observation/", {}),
)
OTHER_ORIGINS: tuple[dict[str, str], ...] = (
    {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost"}, {"Origin": "https://127.0.0.1"}, {"Origin": "file://"},
    {"Origin": "chrome-extension://abc"}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
    {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},
    {"Sec_Fetch_Site": "same-origin\ncross-site"},
)  # fmt: skip


def test_what_is_no_post_of_json_and_what_reports_assets_has_no_effect(ui: Ui) -> None:
    answers = {(how, path, str(told)): send(ui, how, path, **told) for how, path, told in NO_POST_OF_JSON}
    assert {case: status for case, status in answers.items() if status not in {400, 403, 405, 415}} == {}
    assert not ui.was_changed()


def test_pages_of_other_origins_change_and_read_nothing(ui: Ui) -> None:
    answers = {("POST", str(headers)): send(ui, **headers) for headers in OTHER_ORIGINS}
    for headers in OTHER_ORIGINS:
        if headers.get("Sec_Fetch_Mode") != "navigate":
            answers["GET", str(headers)] = send(ui, "GET", "/server_info", "", **headers)
    assert {case: status for case, status in answers.items() if status not in {400, 403}} == {}
    assert not ui.was_changed()


def test_a_link_opens_a_page_but_no_frame(ui: Ui) -> None:
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert send(ui, "GET", "/runs", "", **link, Sec_Fetch_Dest="document") == 200
    assert send(ui, "GET", "/runs", "", **link, Sec_Fetch_Dest="iframe") == 403
    page = requests.get(ui.url, timeout=patience())
    assert page.headers["X-Frame-Options"] == "SAMEORIGIN"
    # both policies hold: Dagster's own, and ours
    assert "script-src" in page.headers["Content-Security-Policy"]
    assert "frame-ancestors 'self'" in page.headers["Content-Security-Policy"]


def test_a_websocket_of_another_origin_is_refused(ui: Ui) -> None:
    address = f"ws://127.0.0.1:{ui.port}/graphql"
    for origin in (None, Origin(ui.url)):
        with connect(address, origin=origin, subprotocols=[PROTOCOL], proxy=None) as opened:
            assert opened.subprotocol == PROTOCOL
    for foreign in ("http://evil.example", "null", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus, match="403"):
            connect(address, origin=Origin(foreign), subprotocols=[PROTOCOL], proxy=None)
    with pytest.raises(InvalidStatus, match="403"):
        connect(address, additional_headers={"Host": "evil.example"}, proxy=None)


def test_with_a_token_everything_asks_for_it(locked: Ui) -> None:
    assert send(locked) == 401
    assert send(locked, "GET", "/", "") == 401
    assert send(locked, "GET", "/server_info", "") == 401
    for wrong in (f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}", TOKEN):
        assert send(locked, Authorization=wrong) == 401
    assert send(locked, Cookie=f"millrace_ui_{locked.port}={TOKEN}") == 401
    with pytest.raises(InvalidStatus, match="403"):
        connect(f"ws://127.0.0.1:{locked.port}/graphql", proxy=None)
    assert not locked.was_changed()
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    address = f"ws://127.0.0.1:{locked.port}/graphql"
    with connect(address, additional_headers=bearer, subprotocols=[PROTOCOL], proxy=None) as opened:
        assert opened.subprotocol == PROTOCOL
    # a token does not replace the checks of page, name and form
    assert send(locked, Origin="http://evil.example", **bearer) == 403
    assert send(locked, Host="evil.example", **bearer) == 421
    assert send(locked, Content_Type="text/plain", **bearer) == 415
    assert not locked.was_changed()


def test_a_link_with_the_token_leaves_a_cookie_that_opens_the_ui(locked: Ui) -> None:
    with requests.Session() as browser:
        opened = browser.get(f"{locked.url}/runs?token={TOKEN}&view=all", timeout=patience(), allow_redirects=False)
        assert (opened.status_code, opened.headers["Location"]) == (303, "/runs?view=all")
        cookie = opened.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        page = browser.get(f"{locked.url}/runs", timeout=patience())
        assert page.status_code == 200
        assert "<html" in page.text
    assert requests.get(f"{locked.url}/?token=wrong", timeout=patience()).status_code == 401
    # the redirect leads to no other server, and adds no header
    for path, expected in (
        ("//evil.example/", "/evil.example/"),
        ("/%5Cevil.example/", "/evil.example/"),
        ("/%5C/evil.example/", "/evil.example/"),
        ("/a%0d%0aSet-Cookie:%20b=c", "/a%0D%0ASet-Cookie%3A%20b%3Dc"),
        ("/runs/%C3%A9", "/runs/%C3%A9"),
    ):
        there = requests.get(f"{locked.url}{path}?token={TOKEN}", timeout=patience(), allow_redirects=False)
        assert there.headers["Location"] == expected
        assert "b" not in there.cookies


def test_the_cookie_is_found_in_up_to_16_kib_of_headers(locked: Ui, ui: Ui) -> None:
    with requests.Session() as browser:
        browser.get(f"{locked.url}/?token={TOKEN}", timeout=patience())
        (ours,) = (f"{cookie.name}={cookie.value}" for cookie in browser.cookies)
    # a cookie on which the standard library's parser takes minutes, and then stops
    others = "a" * 7000 + '="' + "\\" * 7000
    for cookies, expected in (
        (f"{others}; {ours}; b", 200),
        (f"{ours}\nCookie: c=d", 200),
        (f" ;=;{ours} ;", 200),
        (f"x{ours}", 401),
        (f"{ours}x", 401),
        (others, 401),
        (f"{ours}; {'a' * 16_384}", 431),
    ):
        assert send(locked, "GET", "/server_info", "", Cookie=cookies) == expected, cookies[:80]
    # for any sender and any header
    assert send(ui, "GET", "/server_info", "", Cookie="a" * 60_000) == 431
    assert send(ui, "GET", "/server_info", "", X_Anything="a" * 16_384) == 431
    many = {f"X-{number}": "a" * 6000 for number in range(3)}
    with pytest.raises(InvalidStatus, match="403"):
        connect(f"ws://127.0.0.1:{ui.port}/graphql", additional_headers=many, proxy=None)


def test_a_webserver_without_the_gate_is_not_taken_for_ready(ui: Ui) -> None:
    assert gated(ui.url, None)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        assert not gated(f"http://127.0.0.1:{nobody.getsockname()[1]}", None, timeout_s=0.2)


def test_assets_are_reported_with_the_token(locked: Ui) -> None:
    """This test is the last one of this UI, because it changes something."""
    assert send(locked, "POST", "/report_asset_materialization/greeting", "{}", Authorization=f"Bearer {TOKEN}") == 200
    assert locked.was_changed()
