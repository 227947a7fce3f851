"""The UI's access control: a gate in front of Dagster's webserver, which has none.

A web page that a developer has open can send requests to this machine, and so can a name that points here. Dagster's
webserver runs a mutation that comes by GET, or as a form, or from a foreign page. The gate checks:

    the name      127.0.0.1, localhost or [::1] with our port, or one of MILLRACE_UI_HOSTS: DNS rebinding is refused
    the page      Origin and Sec-Fetch-Site of a browser must name our own pages. A link from elsewhere may open one of
                  our pages, but not in a frame.
    the form      a request other than GET or HEAD must be a POST of `application/json`, which no foreign page may send
                  unasked. GraphQL has no other way. A script of this machine that posts JSON passes.
    the size      at most 16 KiB of headers: they are read before the sender is known
    the token     where MILLRACE_UI_TOKEN is set, each request has it: as `Authorization: Bearer`, or once in the link
                  `/?token=`, which sets a cookie. Dagster's `report_asset_…` always require a token.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_PORTS = {"http": "80", "https": "443"}
# A foreign page with ours in a frame can steal clicks. Pages of other origins may not load ours.
ADDED = [
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
POLICY_VIOLATION = 1008
MOST_HEADER_BYTES = 16_384


@dataclass
class Refusal(Exception):
    """A request that does not pass; the text gives the remedy."""

    status: HTTPStatus
    text: str


class Gate:
    """Lets requests through to an ASGI app, or answers them itself.

    Args:
        app: The app behind the gate.
        hosts: Further names of the UI beside this machine's own, each with or without a port.
        token: The token that each request must show; None requires none.
    """

    def __init__(self, app: App, *, hosts: Iterable[str] = (), token: str | None = None) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it to the app."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        try:
            size = sum(len(name) + len(value) for name, value in scope["headers"])
            if size > MOST_HEADER_BYTES:
                raise Refusal(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"The headers have {size:,} bytes, and may have {MOST_HEADER_BYTES:,}: remove the cookies of this name.",
                )
            led_on = self._opened_by_link(scope)
            if led_on is None:
                self._require(scope)
        except Refusal as refusal:
            if scope["type"] == "websocket":
                # close before accepting: the client gets 403
                await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": refusal.text})
            else:
                more = [(b"www-authenticate", b"Bearer")] if refusal.status is HTTPStatus.UNAUTHORIZED else []
                await _answer(send, refusal.status, f"{refusal.text}\n", more)
            return
        if led_on is not None:
            await _answer(send, HTTPStatus.SEE_OTHER, "", led_on)
            return

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *ADDED]}
            await send(message)

        await self._app(scope, receive, sending)

    def _require(self, scope: Scope) -> None:
        """Refuse a request that may not pass.

        Raises:
            Refusal: It has the status of the answer.
        """
        self._require_our_page(scope, self._required_host(scope))
        shown = self._token_is_shown(scope)
        if self._token is not None and not shown:
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "This UI asks for a token: open /?token=<the value of MILLRACE_UI_TOKEN> once, or send the header"
                " 'Authorization: Bearer <token>'.",
            )
        last = [part for part in scope["path"].split("/") if part]
        if any(part.startswith("report_asset_") for part in last) and not shown:
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "Assets are reported with a token only: set MILLRACE_UI_TOKEN, and send it as 'Authorization: Bearer'.",
            )
        if scope["type"] != "http":
            return
        if scope["method"] in {"GET", "HEAD"}:
            if last[-1:] == ["graphql"] and scope["query_string"]:
                raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "GraphQL is asked by POST of application/json.")
        elif scope["method"] != "POST":
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "There is nothing to do here but GET, HEAD and POST.")
        elif (_only(scope, b"content-type") or "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send it as POST with 'Content-Type: application/json'.")

    def _required_host(self, scope: Scope) -> str:
        """Return the name that the request was sent to, which must be one of ours."""
        host = (_only(scope, b"host") or "").lower()
        if not host:
            raise Refusal(HTTPStatus.BAD_REQUEST, "A request names one Host.")
        # the port that the connection came to
        port = (scope.get("server") or ("", None))[1]
        names = {f"{name}:{port}" for name in LOOPBACK_NAMES}
        if str(port) == DEFAULT_PORTS["http"]:
            names.update(LOOPBACK_NAMES)
        if not (host in names or self._is_listed(host)):
            shown_host = host if host.isascii() and host.isprintable() and len(host) <= 253 else "This"
            raise Refusal(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"{shown_host} is no name of this UI. If it should be one, list it in MILLRACE_UI_HOSTS.",
            )
        return host

    def _is_listed(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        return host in self._hosts or (bool(colon) and port.isdigit() and name in self._hosts)

    def _require_our_page(self, scope: Scope, host: str) -> None:
        elsewhere = Refusal(HTTPStatus.FORBIDDEN, "A page of another origin may not do this.")
        origin = _only(scope, b"origin")
        if origin is not None:
            scheme, _, sender = origin.lower().partition("://")
            port = DEFAULT_PORTS.get(scheme)
            # a proxy may forward under our name a request that it got under its own
            same = port and _with_port(sender, port) == _with_port(host, port)
            if not (same or (port and self._is_listed(sender))):
                raise elsewhere
        site = _only(scope, b"sec-fetch-site") or "same-origin"
        if site in {"same-origin", "none"}:
            return
        opens_a_page = (
            scope["type"] == "http"
            and scope["method"] == "GET"
            and origin is None
            and _only(scope, b"sec-fetch-mode") == "navigate"
            and _only(scope, b"sec-fetch-dest") == "document"
        )
        if not opens_a_page:
            raise elsewhere

    def _token_is_shown(self, scope: Scope) -> bool:
        if self._token is None:
            return False
        scheme, _, bearer = (_only(scope, b"authorization") or "").partition(" ")
        if scheme.lower() == "bearer":
            return _equal(bearer.strip(), self._token)
        # parse by hand: the standard library's parser takes quadratic time in the length of a header
        pairs = (pair.strip().partition("=") for line in _all(scope, b"cookie") for pair in line.split(";"))
        return any(
            name == _cookie_name(scope) and _equal(value, _cookie_value(self._token)) for name, _, value in pairs
        )

    def _opened_by_link(self, scope: Scope) -> Headers | None:
        """Return a redirect that sets a cookie and drops the token from the address, if the request is such a link."""
        if scope["type"] != "http" or scope["method"] != "GET" or self._token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = [value for name, value in query if name == "token"]
        if not shown:
            return None
        # require only the name: a foreign page that knows the token may open the link
        self._required_host(scope)
        if not _equal(shown[0], self._token):
            raise Refusal(HTTPStatus.UNAUTHORIZED, "This is not the token of this UI, MILLRACE_UI_TOKEN.")
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        # one slash: with two the browser would go to another server; `quote` lets no line break into the header
        link = "/" + quote(str(scope["path"]).lstrip("/\\")) + (f"?{rest}" if rest else "")
        cookie = f"{_cookie_name(scope)}={_cookie_value(self._token)}; Path=/; HttpOnly; SameSite=Strict"
        return [(b"location", link.encode()), (b"set-cookie", cookie.encode())]


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _only(scope: Scope, name: bytes) -> str | None:
    """Return a header, None if it is missing; refuse two of them: the app behind might take the other one."""
    values = _all(scope, name)
    if len(values) > 1:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"There are several headers {name.decode()}.")
    return values[0].strip() if values else None


def _with_port(host: str, default: str) -> str:
    return f"{host}:{default}" if host.endswith("]") or ":" not in host else host


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode())


def _cookie_value(token: str) -> str:
    """Return the cookie's value: it opens the UI, but is not the token."""
    return hmac.new(token.encode(), b"millrace: cookie of the UI", hashlib.sha256).hexdigest()


def _cookie_name(scope: Scope) -> str:
    # browsers share cookies between the ports of a name: two UIs of one machine must not overwrite each other's
    return f"millrace_ui_{(scope.get('server') or ('', 0))[1]}"


async def _answer(send: Send, status: HTTPStatus, text: str, headers: Headers) -> None:
    body = text.encode()
    all_headers: Headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        *ADDED,
        *headers,
    ]
    await send({"type": "http.response.start", "status": status.value, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})
