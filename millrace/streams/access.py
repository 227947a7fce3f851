"""Rights to read paths, asked at each connection. Not here: tokens, of another implementation of `Rights`."""

import ipaddress
from dataclasses import dataclass
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request


@dataclass(frozen=True)
class Access:
    """A permission to read a path.

    Attributes:
        login: The login of Postgres that reads; None where no rights are asked for.
    """

    login: str | None = None


class Rights(Protocol):
    """Decides on each request."""

    async def may(self, request: Request, path: str) -> Access:
        """Return the permission to read a path.

        Raises:
            HTTPException: The request may not; status and text are the answer.
        """


class OpenAccess:
    """Everything to everybody on this machine, by a name of this machine."""

    async def may(self, request: Request, path: str) -> Access:  # noqa: ARG002 - as the protocol has it
        """Return a permission, if the request comes from this machine and was sent to it.

        Raises:
            HTTPException: It does not, or a foreign name led here.
        """
        if not (request.client and _is_local(request.client.host)):
            raise HTTPException(403, "Only this machine may read here.")
        if not _is_local(request.url.hostname or ""):
            raise HTTPException(421, "The name of this request is no name of this machine.")
        return Access()


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


open_access = OpenAccess()
