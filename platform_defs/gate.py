"""The UI's access control: a gate in front of Dagster's webserver, which has none.

Dagster's webserver runs a mutation that comes by GET, or as a form, or from a foreign page. The gate checks:

    the request   its size, the name that it was sent to, and the page that it comes from: see `own_pages`. A link from
                  elsewhere may open one of our pages, but not in a frame.
    the form      a request other than GET or HEAD must be a POST of `application/json`, which no foreign page may send
                  unasked. GraphQL has no other way. A script of this machine that posts JSON passes.
    the token     where MILLRACE_UI_TOKEN is set, each request has it: as `Authorization: Bearer`, or once in the link
                  `/?token=`, which sets a cookie. Dagster's `report_asset_…` always require a token.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from millrace.own_pages import OwnPages, Refused, Scope, bearer, cookie_name, cookies, only, require_small_head

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# A foreign page with ours in a frame can steal clicks. Pages of other origins may not load ours.
ADDED = [
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
POLICY_VIOLATION = 1008


class Gate:
    """Lets requests through to an ASGI app, or answers them itself.

    Args:
        app: The app behind the gate.
        hosts: Further names of the UI beside this machine's own, each with or without a port.
        token: The token that each request must show; None requires none.
    """

    def __init__(self, app: App, *, hosts: Iterable[str] = (), token: str | None = None) -> None:
        self._app = app
        self._pages = OwnPages("this UI", hosts)
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it to the app."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        try:
            require_small_head(scope)
            led_on = self._opened_by_link(scope)
            if led_on is None:
                self._require(scope)
        except Refused as refusal:
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
            Refused: It has the status of the answer.
        """
        self._pages.require(scope, links=True)
        shown = self._token_is_shown(scope)
        if self._token is not None and not shown:
            raise Refused(
                HTTPStatus.UNAUTHORIZED,
                "This UI asks for a token: open /?token=<the value of MILLRACE_UI_TOKEN> once, or send the header"
                " 'Authorization: Bearer <token>'.",
            )
        last = [part for part in scope["path"].split("/") if part]
        if any(part.startswith("report_asset_") for part in last) and not shown:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "Assets are reported with a token only: set MILLRACE_UI_TOKEN, and send it as 'Authorization: Bearer'.",
            )
        if scope["type"] != "http":
            return
        if scope["method"] in {"GET", "HEAD"}:
            if last[-1:] == ["graphql"] and scope["query_string"]:
                raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "GraphQL is asked by POST of application/json.")
        elif scope["method"] != "POST":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "There is nothing to do here but GET, HEAD and POST.")
        elif (only(scope, b"content-type") or "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send it as POST with 'Content-Type: application/json'.")

    def _token_is_shown(self, scope: Scope) -> bool:
        if self._token is None:
            return False
        shown = bearer(scope)
        if shown is not None:
            return _equal(shown, self._token)
        cookie = _cookie_value(self._token)
        return any(_equal(value, cookie) for value in cookies(scope, cookie_name(scope, "ui")))

    def _opened_by_link(self, scope: Scope) -> Headers | None:
        """Return a redirect that sets a cookie and drops the token from the address, if the request is such a link."""
        if scope["type"] != "http" or scope["method"] != "GET" or self._token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = [value for name, value in query if name == "token"]
        if not shown:
            return None
        # require only the name: a foreign page that knows the token may open the link
        self._pages.required_host(scope)
        if not _equal(shown[0], self._token):
            raise Refused(HTTPStatus.UNAUTHORIZED, "This is not the token of this UI, MILLRACE_UI_TOKEN.")
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        # one slash: with two the browser would go to another server; `quote` lets no line break into the header
        link = "/" + quote(str(scope["path"]).lstrip("/\\")) + (f"?{rest}" if rest else "")
        cookie = f"{cookie_name(scope, 'ui')}={_cookie_value(self._token)}; Path=/; HttpOnly; SameSite=Strict"
        return [(b"location", link.encode()), (b"set-cookie", cookie.encode())]


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode())


def _cookie_value(token: str) -> str:
    """Return the cookie's value: it opens the UI, but is not the token."""
    return hmac.new(token.encode(), b"millrace: cookie of the UI", hashlib.sha256).hexdigest()


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
