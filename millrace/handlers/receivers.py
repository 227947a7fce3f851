"""The receivers of pushes: the server behind a URL, and the check that pushes may go there.

A URL could otherwise reach what only this machine reaches: services on loopback, the metadata of a cloud, servers
behind the firewall. So a URL leads only to public addresses and to those that MILLRACE_PUSH_ALLOW lists. The address is
looked up once, checked, and connected to: a name cannot lead elsewhere a moment later. No proxy of the environment, no
`.netrc` and no cookie is used, no redirect followed, and the whole delivery has one deadline.

An answer may be a secret of the receiver's network: the store keeps its status, length and a hash.

A URL may name secrets of the push's environment, before the host's `@`, in the path or in the query:
`${MILLRACE_PUSH_SECRET_X}`. Such a variable states its host, as in `hooks.example.com s3cret`. Otherwise any author of
a URL could send other people's secrets to any host. No other variable can be named.
"""

import hashlib
import ipaddress
import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from types import TracebackType
from typing import Self
from urllib.parse import quote, unquote

import certifi
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, make_headers, parse_url

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

HTTP_PORTS = {"http": 80, "https": 443}
ANSWER_BYTES = 2_000
SECRETS = "MILLRACE_PUSH_SECRET_"
PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
# IPv6 addresses that lead to any IPv4 address, private ones too; then addresses that Python wrongly counts as public:
# segments of a network of its own, and documentation
NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "64:ff9b::/96",
            "64:ff9b:1::/48",
            "2002::/16",
            "2001::/32",
            "::/96",
            "::ffff:0:0:0/96",
            "5f00::/16",
            "3fff::/20",
        ),
    )
)


class Forbidden(Exception):
    """The URL leads where pushes may not go."""


@dataclass(frozen=True)
class Answer:
    """The answer of a receiver.

    Attributes:
        status: Its HTTP status; 0 for none.
        error: The text that the store may keep.
        body_text: The answer's text, for the operators of this machine.
        retry_after: Its header Retry-After; empty for none.
    """

    status: int
    error: str
    body_text: str
    retry_after: str = ""

    def status_only(self) -> "Answer":
        """Return it without all that may repeat the body that was sent."""
        error = f"HTTP {self.status}" if self.status else self.error
        return Answer(self.status, error, "its text may have personal data", self.retry_after)


class Allowed:
    """The addresses that pushes may go to, in addition to public ones.

    Args:
        listed: Networks, such as `10.0.0.0/8`, addresses, and names of hosts.
    """

    def __init__(self, listed: Iterable[str] = ()) -> None:
        self._networks: list[Network] = []
        self._hosts: set[str] = set()
        for each in listed:
            try:
                self._networks.append(ipaddress.ip_network(each, strict=False))
            except ValueError:
                self._hosts.add(each.lower())

    def __call__(self, host: str, address: Address) -> bool:
        """Return whether a push to a host that has this address may go there."""
        address = _unmapped(address)
        if host.lower() in self._hosts or any(address in network for network in self._networks):
            return True
        return is_public(address)


def is_public(address: Address) -> bool:
    """Return whether an address leads to the same machine from everywhere, and never into this network."""
    address = _unmapped(address)
    return address.is_global and not address.is_multicast and not any(address in network for network in NOT_PUBLIC)


def _unmapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def with_secrets(url: str, environ: Mapping[str, str]) -> str:
    """Insert the secrets that a URL names.

    Raises:
        Forbidden: It names a variable that does not exist, or is not for this host.
    """
    if not PLACEHOLDER.search(url):
        return url
    # no secret influences the host
    host = parse_url(PLACEHOLDER.sub("x", url)).host

    def secret(match: re.Match[str]) -> str:
        allowed_host, _, value = (
            environ.get(match[1], "").partition(" ") if match[1].startswith(SECRETS) else ("", "", "")
        )
        if not value or allowed_host.lower() != host:
            raise Forbidden(
                f"The URL names {match[1]}, which is no secret for this host. An operator sets {SECRETS}NAME to the host, a"
                " space and the secret."
            )
        return quote(value, safe="")

    filled = PLACEHOLDER.sub(secret, url)
    if parse_url(filled).host != host:
        raise Forbidden("The URL names a secret in its host.")
    return filled


class Endpoint:
    """The receiver at one URL, with a connection that is kept; the caller closes it.

    Args:
        url: The URL, with names of secrets.
        allowed: Where pushes may go.
        environ: The variables with the secrets that the URL names.
    """

    def __init__(self, url: str, allowed: Allowed, environ: Mapping[str, str] = os.environ) -> None:
        self._allowed = allowed
        self._connection: HTTPConnection | None = None
        self._url, self._forbidden = Url(), ""
        try:
            self._url = parse_url(with_secrets(url, environ))
        except Forbidden as error:
            self._forbidden = str(error)
        except LocationParseError:
            self._forbidden = "The URL is unreadable."  # it may hold a secret

    def check(self) -> None:
        """Look up where the URL leads, without connecting.

        Raises:
            Forbidden: It is unreadable, names a secret that is not for its host, or leads where pushes may not go.
            OSError: The name of its host does not resolve.
            UnicodeError: Its host has an impossible name.
        """
        if self._forbidden:
            raise Forbidden(self._forbidden)
        _, host, port = _place(self._url)
        self._address(host, port)

    def post(self, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """Send a body; `timeout_s` covers all from connecting to the end of the answer."""
        if self._forbidden:
            return Answer(0, self._forbidden, self._forbidden)
        try:
            if self._connection is None or not self._connection.is_connected:
                self.close()
                scheme, host, port = _place(self._url)
                address = str(self._address(host, port))
                if scheme == "http":
                    self._connection = HTTPConnection(address, port, timeout=timeout_s)
                else:
                    # the certificate has the name, not the address
                    self._connection = HTTPSConnection(
                        address,
                        port,
                        timeout=timeout_s,
                        server_hostname=host,
                        assert_hostname=host,
                        cert_reqs="CERT_REQUIRED",
                        ca_certs=certifi.where(),
                    )
            with _ended_after(self._connection, timeout_s):
                return self._send(self._connection, body, headers)
        except Forbidden as error:
            return Answer(0, str(error), str(error))
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            self.close()
            # only operators get the kind of error, which tells whether a service listens there
            return Answer(0, "No answer.", f"No answer: {error}")

    @property
    def fault(self) -> str | None:
        """The fault of the URL itself, wherever it leads; None if it has none."""
        try:
            _place(self._url)
        except Forbidden as error:
            return self._forbidden or str(error)
        return self._forbidden or None

    @property
    def place(self) -> str:
        """Scheme, host and port: the part of the URL that may be shown. Its path may be a secret."""
        port = f":{self._url.port}" if self._url.port else ""
        return f"{self._url.scheme or ''}://{self._url.host or ''}{port}"

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _address(self, host: str, port: int) -> Address:
        """Return the first address of a host that pushes may go to.

        Raises:
            Forbidden: It has none.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for *_, place in found:
            address = ipaddress.ip_address(str(place[0]).partition("%")[0])
            if self._allowed(host, address):
                return address
        raise Forbidden("The URL leads to an address that is not public. An operator lists it in MILLRACE_PUSH_ALLOW.")

    def _send(self, connection: HTTPConnection, body: bytes, headers: Mapping[str, str]) -> Answer:
        secret = make_headers(basic_auth=unquote(self._url.auth)) if self._url.auth else {}
        host = {"Host": self._url.netloc.rpartition("@")[2] if self._url.netloc else ""}
        connection.request(
            "POST",
            self._url.request_uri,
            body,
            {**headers, **secret, **host},
            preload_content=False,
            decode_content=False,
        )
        response = connection.getresponse()
        # read only a part: the status counts, however long the text is or whatever happens to it
        body_text, complete = b"", False
        with suppress(HTTPError, HTTPException, OSError, ValueError):
            while len(body_text) <= ANSWER_BYTES and not complete:
                piece = response.read(ANSWER_BYTES + 1 - len(body_text), decode_content=False)
                body_text, complete = body_text + piece, not piece
        if not complete:
            self.close()
        body_text = body_text[:ANSWER_BYTES]
        phrase = ""
        with suppress(ValueError):
            phrase = f" {HTTPStatus(response.status).phrase}"
        size = f"at least {len(body_text)}" if len(body_text) == ANSWER_BYTES else len(body_text)
        # the part that may be public
        error = f"HTTP {response.status}{phrase}, {size} bytes, sha256 {hashlib.sha256(body_text).hexdigest()[:12]}"
        retry_after = response.headers.get("Retry-After", "")
        return Answer(response.status, error, body_text.decode(errors="replace"), retry_after)


@contextmanager
def _ended_after(connection: HTTPConnection, seconds: float) -> Iterator[None]:
    """Fail the work with a connection when the time is over; its own timeout restarts with each byte."""
    ended = threading.Event()

    def watch() -> None:
        wait_s = seconds
        # repeatedly: the connection may be opened only now
        while not ended.wait(wait_s):
            opened, wait_s = connection.sock, 0.1
            if opened is not None:
                with suppress(OSError):
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _place(url: Url) -> tuple[str, str, int]:
    scheme, host = url.scheme or "", (url.host or "").strip("[]")
    if scheme not in HTTP_PORTS or not host:
        raise Forbidden("The URL is none of http:// or https:// with a host.")
    return scheme, host, url.port or HTTP_PORTS[scheme]
