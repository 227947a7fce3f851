"""Whether a request names this server, and comes from its own pages: for every server here that a browser reaches.

A web page that a developer has open can send requests to this machine, and so can a name that points here.

    the name      127.0.0.1, localhost or [::1] with our port, or one of MILLRACE_UI_HOSTS: DNS rebinding is refused
    the page      Origin and Sec-Fetch-Site of a browser must name our own pages
    the size      at most 16 KiB of headers: they are read before the sender is known
"""

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

Scope = MutableMapping[str, Any]

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_PORTS = {"http": "80", "https": "443"}
MOST_HEADER_BYTES = 16_384


@dataclass
class Refused(Exception):
    """A request that does not pass; the text gives the remedy."""

    status: HTTPStatus
    text: str


class OwnPages:
    """The names and pages of one server.

    Args:
        server: What it is, for the text of a refusal.
        hosts: Further names of it beside this machine's own, each with or without a port.
    """

    def __init__(self, server: str, hosts: Iterable[str] = ()) -> None:
        self._server = server
        self._hosts = {host.lower() for host in hosts}

    def required_host(self, scope: Scope) -> str:
        """Return the name that the request was sent to, which must be one of ours.

        Raises:
            Refused: It is not.
        """
        host = (only(scope, b"host") or "").lower()
        if not host:
            raise Refused(HTTPStatus.BAD_REQUEST, "A request names one Host.")
        # the port that the connection came to
        port = (scope.get("server") or ("", None))[1]
        names = {f"{name}:{port}" for name in LOOPBACK_NAMES}
        if str(port) == DEFAULT_PORTS["http"]:
            names.update(LOOPBACK_NAMES)
        if not (host in names or self._is_listed(host)):
            shown_host = host if host.isascii() and host.isprintable() and len(host) <= 253 else "This"
            raise Refused(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"{shown_host} is no name of {self._server}. If it should be one, list it in MILLRACE_UI_HOSTS.",
            )
        return host

    def require(self, scope: Scope, *, links: bool = False) -> None:
        """Refuse a request to a foreign name or from a foreign page; with `links`, a link there may open a page here.

        Raises:
            Refused: It has the status of the answer.
        """
        host = self.required_host(scope)
        elsewhere = Refused(HTTPStatus.FORBIDDEN, "A page of another origin may not do this.")
        origin = only(scope, b"origin")
        if origin is not None:
            scheme, _, sender = origin.lower().partition("://")
            port = DEFAULT_PORTS.get(scheme)
            # a proxy may forward under our name a request that it got under its own
            same = port and _with_port(sender, port) == _with_port(host, port)
            if not (same or (port and self._is_listed(sender))):
                raise elsewhere
        site = only(scope, b"sec-fetch-site") or "same-origin"
        if site in {"same-origin", "none"}:
            return
        opens_a_page = (
            links
            and scope["type"] == "http"
            and scope["method"] == "GET"
            and origin is None
            and only(scope, b"sec-fetch-mode") == "navigate"
            and only(scope, b"sec-fetch-dest") == "document"
        )
        if not opens_a_page:
            raise elsewhere

    def _is_listed(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        return host in self._hosts or (bool(colon) and port.isdigit() and name in self._hosts)


def require_small_head(scope: Scope) -> None:
    """Refuse a request with large headers.

    Raises:
        Refused: They are.
    """
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MOST_HEADER_BYTES:
        raise Refused(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"The headers have {size:,} bytes, and may have {MOST_HEADER_BYTES:,}: remove the cookies of this name.",
        )


def only(scope: Scope, name: bytes) -> str | None:
    """Return a header, None if it is missing; refuse two of them: the app behind might take the other one.

    Raises:
        Refused: There are several.
    """
    values = _all(scope, name)
    if len(values) > 1:
        raise Refused(HTTPStatus.BAD_REQUEST, f"There are several headers {name.decode()}.")
    return values[0].strip() if values else None


def bearer(scope: Scope) -> str | None:
    """Return the token of the header `Authorization: Bearer`, None if the request has none."""
    scheme, _, shown = (only(scope, b"authorization") or "").partition(" ")
    return shown.strip() if scheme.lower() == "bearer" else None


def cookies(scope: Scope, name: str) -> list[str]:
    """Return the values of all cookies of a name."""
    # parse by hand: the standard library's parser takes quadratic time in the length of a header
    pairs = (pair.strip().partition("=") for line in _all(scope, b"cookie") for pair in line.split(";"))
    return [value for key, _, value in pairs if key == name]


def cookie_name(scope: Scope, of: str) -> str:
    """Return a cookie's name with our port: browsers share cookies between the ports of a name."""
    return f"millrace_{of}_{(scope.get('server') or ('', 0))[1]}"


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _with_port(host: str, default: str) -> str:
    return f"{host}:{default}" if host.endswith("]") or ":" not in host else host
