"""The UI in a real Chromium: our own pages work, and a foreign page changes and reads nothing."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from urllib.parse import quote

import pytest

from tests.support.browsing.browser import visit
from tests.support.browsing.ui import PAUSE, Ui, running_ui
from tests.support.running.http_servers import Silent, serving

TOKEN = "a-token-of-this-test"
# Browsers allow each of these attempts to any page. An attempt that returns has read something, and logs it.
PAGE = Template("""<!doctype html><title>evil</title><body><iframe name=hole></iframe><p id=log></p><script>
const ui = "http://127.0.0.1:$port", rebound = "http://rebound.example:$port", mutation = "$mutation";
const json = JSON.stringify({query: "$plain"}), log = [];
const tried = (name, attempt) => Promise.race([attempt, new Promise(done => setTimeout(done, 3000, "nothing"))])
  .then(said => log.push(name + "=" + said), error => log.push(name + "=refused"));
function post(path, kind) {
  const form = Object.assign(document.createElement("form"), {method: "POST", action: ui + path, enctype: kind, target: "hole"});
  form.append(Object.assign(document.createElement("input"), {name: '{"query": "$plain", "x": "', value: '"}'}));
  document.body.append(form);
  form.submit();
  return new Promise(done => setTimeout(done, 1000, "sent"));
}
const load = (tag, path) => new Promise((done, fail) => {
  const element = Object.assign(document.createElement(tag), {src: ui + path, onload: () => done("read"), onerror: fail});
  document.body.append(element);
});
const read = (url, options) => fetch(url, options).then(answer => answer.text()).then(text => text ? "read" : "nothing");
const socket = (url) => new Promise((done, fail) => Object.assign(new WebSocket(url, "graphql-ws"), {onopen: () => done("read"), onerror: fail}));
(async () => {
  await tried("form", post("/graphql?query=" + mutation, "application/x-www-form-urlencoded"));
  await tried("form-multipart", post("/graphql?query=" + mutation, "multipart/form-data"));
  await tried("form-text", post("/graphql", "text/plain"));
  await tried("form-report", post("/report_asset_materialization/greeting", "text/plain"));
  await tried("img", load("img", "/graphql?query=" + mutation));
  await tried("icon", load("img", "/favicon.png"));
  await tried("script", load("script", "/graphql?query=" + mutation));
  await tried("no-cors", read(ui + "/graphql", {method: "POST", mode: "no-cors", body: json, headers: {"Content-Type": "text/plain"}}));
  await tried("no-cors-query", read(ui + "/graphql?query=" + mutation, {method: "POST", mode: "no-cors", credentials: "include"}));
  await tried("cors", read(ui + "/graphql", {method: "POST", body: json, headers: {"Content-Type": "application/json"}}));
  await tried("cors-get", read(ui + "/graphql?query=" + mutation));
  await tried("beacon", Promise.resolve(navigator.sendBeacon(ui + "/graphql?query=" + mutation) && "sent"));
  await tried("websocket", socket("ws://127.0.0.1:$port/graphql"));
  await tried("rebound", read(rebound + "/server_info"));
  await tried("rebound-websocket", socket("ws://rebound.example:$port/graphql"));
  document.getElementById("log").textContent = log.join(" ") + " done";
})();
</script>""")


@contextmanager
def served(page: str) -> Iterator[str]:
    class Handler(Silent, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield str(server.server_port)


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    with running_ui(tmp_path_factory.mktemp("ui")) as ui:
        yield ui


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1", "localhost"])
def test_a_page_that_a_developer_has_open_changes_and_reads_nothing(ui: Ui, name: str) -> None:
    names = {"evil.example": "127.0.0.1", "rebound.example": "127.0.0.1"}
    with served(PAGE.substitute(port=ui.port, mutation=quote(PAUSE), plain=PAUSE)) as port:
        page = visit(f"http://{name}:{port}/", names)
    said = re.search(r'<p id="log">(.*?) done</p>', page)
    assert said is not None, page
    attempts = dict(attempt.split("=") for attempt in said[1].split())
    assert len(attempts) == 15
    assert {name for name, what in attempts.items() if what == "read"} == set()
    assert not ui.was_changed()


def test_a_name_that_was_bent_to_this_machine_shows_nothing(ui: Ui) -> None:
    page = visit(f"http://rebound.example:{ui.port}/runs", {"rebound.example": "127.0.0.1"})
    assert "rebound.example" in page
    assert "is no name of this UI" in page


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_our_own_pages_work(ui: Ui, name: str) -> None:
    assert "greeting" in visit(f"http://{name}:{ui.port}/assets")


def test_with_a_token_the_link_opens_the_pages_and_nothing_else_does(tmp_path: Path) -> None:
    with running_ui(tmp_path, token=TOKEN) as ui:
        assert "greeting" in visit(f"{ui.url}/assets?token={TOKEN}")
        assert "This UI asks for a token" in visit(f"{ui.url}/assets")
