"""The receiver of alerts: its settings, one signed request, and the meaning of the answer for an operator.

In Standard Webhooks, `webhook-id` is the same for every retry, `webhook-timestamp` is the time of the try, and
`webhook-signature` signs both and the body.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import responses
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from millrace.errors import MillraceError
from millrace.handlers.receivers import Allowed, Endpoint, Forbidden
from millrace.operations.alerts.findings import clean, cut
from millrace.operations.alerts.messages import FORMATS, STANDARD, Message
from millrace.patience import BUSY_S
from millrace.settings import THIS_MACHINE, Settings, listed
from millrace.signing import fault_of, signed

HOW_TO_MAKE_ONE = 'echo "whsec_$(openssl rand -base64 32)"'


class BadAlertSettings(MillraceError):
    """The settings of alerts cannot be used: no alerts are sent."""


class NotDelivered(MillraceError):
    """The receiver did not take a message."""


@dataclass(frozen=True)
class AlertSettings:
    """The receiver of alerts and the form of messages.

    Attributes:
        url: The receiver; its path may be a secret.
        secret: The key that signs messages; None for no signature, which Slack ignores.
        form: 'standard' or 'slack'.
        ui_address: The UI's address, for links; empty for no links.
        allowed: Networks and hosts that messages may go to, in addition to public addresses.
        warnings: Faults that hold no message back, a sentence each.
    """

    url: str = field(repr=False)
    secret: str | None = field(repr=False)
    form: str
    ui_address: str
    allowed: Sequence[str]
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Delivery:
    """The outcome of one try.

    Attributes:
        delivered: Whether the receiver took it: its status is 2xx.
        error: Why not, in the form that the store may keep; None if it did.
        outcome: The outcome as text, for the operators of this machine.
    """

    delivered: bool
    error: str | None
    outcome: str


def alert_settings(settings: Settings) -> AlertSettings | None:
    """Return the receiver of alerts; None if the settings have none.

    Raises:
        BadAlertSettings: A setting cannot be used; the text has its name, the reason, and what is allowed. It quotes no
            secret, and only the beginning of the URL.
    """
    url = settings.alert_url.get_secret_value().strip() if settings.alert_url else ""
    if not url:
        return None
    allowed = settings.listed_push_allow or (listed(THIS_MACHINE) if settings.dsn is None else [])
    with Endpoint(url, Allowed(allowed)) as endpoint:
        if endpoint.fault:
            raise BadAlertSettings(
                f"MILLRACE_ALERT_URL cannot be sent to: {endpoint.fault}",
                hint="Set it to the whole URL of the receiver, such as https://alerts.example.com/millrace.",
            )
    if settings.alert_format not in FORMATS:
        raise BadAlertSettings(
            f"MILLRACE_ALERT_FORMAT is {clean(settings.alert_format)!r}.",
            hint=f"Set it to one of {', '.join(FORMATS)}; not set, it is {STANDARD}.",
        )
    secret = settings.alert_secret.get_secret_value().strip() if settings.alert_secret else ""
    if not secret and settings.alert_format == STANDARD:
        raise BadAlertSettings(
            "MILLRACE_ALERT_SECRET is not set: the receiver could not tell alerts from what others send.",
            hint=f"Make one, and give it to the receiver, too: {HOW_TO_MAKE_ONE}",
        )
    if secret:
        require_secret(secret)
    address, warnings = settings.ui_address, []
    if not _is_address(address):
        warnings.append(
            f"MILLRACE_UI_URL is {clean(address)!r}, and no address of a UI: alerts have no links. Set it to one such as"
            " https://dagster.example.com."
        )
        address = ""
    return AlertSettings(url, secret or None, settings.alert_format, address, tuple(allowed), tuple(warnings))


def require_secret(secret: str) -> None:
    """Refuse a text that is not a secret of Standard Webhooks.

    Raises:
        BadAlertSettings: The text says why, without the secret.
    """
    if fault := fault_of(secret):
        raise BadAlertSettings(f"MILLRACE_ALERT_SECRET {fault}.", hint=f"Copy it again, or make one: {HOW_TO_MAKE_ONE}")


class AlertReceiver:
    """The receiver of alerts; the caller closes it. For one thread."""

    def __init__(self, settings: AlertSettings) -> None:
        self.settings = settings
        self._endpoint = Endpoint(settings.url, Allowed(settings.allowed))

    @property
    def place(self) -> str:
        """Its address without the parts that may be secret."""
        return self._endpoint.place

    def problem(self) -> str | None:
        """Look up where messages would go, without sending one; return the problem in a sentence, None for none."""
        try:
            self._endpoint.check()
        except Forbidden as error:
            return f"Alerts cannot be sent to {self.place}: {error}"
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no name of a host"
            return f"Alerts cannot be sent to {self.place} now: its name is not known here ({why})."
        return None

    def send(self, message: Message) -> Delivery:
        """Send a message; it takes 10 seconds at most once the name is looked up, and no redirect is followed."""
        body = message.body(self.settings.form).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "millrace"}
        if self.settings.secret is not None:
            headers |= signed(message.message_id, body, [self.settings.secret])
        answer = self._endpoint.post(body, headers, BUSY_S)
        status = answer.status
        if status // 100 == 2:
            return Delivery(
                True, None, f"{self.place} took it: HTTP {status} {responses.get(status, '')}".rstrip() + "."
            )
        if status:
            error = f"{self.place} did not take it: {answer.error}."
        elif answer.error.startswith("No answer"):
            error = f"{self.place} did not answer within {BUSY_S} s, or nothing listens there."
        else:
            error = f"{self.place}: {answer.error}"
        if status // 100 == 3:
            error += " It redirects, and a redirect is not followed: set MILLRACE_ALERT_URL to where it leads."
        elif status in {401, 403, 404, 405, 410}:
            error += " Is MILLRACE_ALERT_URL whole, and still in use there?"
        elif status in {400, 415, 422}:
            error += f" Is MILLRACE_ALERT_FORMAT what it expects ({', '.join(FORMATS)})?"
        elif status == HTTPStatus.TOO_MANY_REQUESTS:
            error += " It wants fewer messages."
        # the store keeps `error` only; the receiver's own text is for operators
        shown = cut(clean(answer.body_text), 300)
        return Delivery(False, error, f"{error} It said: {shown}" if shown and shown not in error else error)

    def close(self) -> None:
        """End the connection."""
        self._endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def alert_summary(settings: Settings) -> str:
    """Return whether alerts are sent, and where to; of the URL, only the host, because its path may be a secret."""
    try:
        receiver_settings = alert_settings(settings)
    except BadAlertSettings as error:
        return f"off: {error.message} {error.hint or ''}".strip()
    if receiver_settings is None:
        return "off; set MILLRACE_ALERT_URL"
    with AlertReceiver(receiver_settings) as receiver:
        return (
            f"to {receiver.place} ({receiver_settings.form}, {'signed' if receiver_settings.secret else 'not signed'})"
        )


def _is_address(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and address.isprintable()
    except ValueError:
        return False
