"""Signing messages to receivers by the specification Standard Webhooks (https://www.standardwebhooks.com)."""

import binascii
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook

PREFIX = "whsec_"
# allowed lengths of a secret
BYTES = range(24, 65)
MADE_BYTES = 32


def made_secret() -> str:
    """Make a secret."""
    return PREFIX + b64encode(secrets.token_bytes(MADE_BYTES)).decode()


def fault_of(secret: str) -> str | None:
    """Say what is wrong with a secret, without quoting it; None if it is valid. The library would take any text."""
    if not secret.startswith(PREFIX):
        return f"does not begin with {PREFIX}"
    try:
        key = b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return f"is not base64 behind {PREFIX}: a character is lost, or one too many"
    if len(key) not in BYTES:
        return f"has {len(key)} bytes; {BYTES[0]} to {BYTES[-1]} are allowed"
    return None


def signed(message_id: str, body: bytes, keys: Sequence[str]) -> dict[str, str]:
    """Return the headers of a message, signed with each of these secrets: a receiver needs to know only one.

    Args:
        message_id: Names the message; each retry has the same one.
        body: The message's body.
        keys: The secrets.
    """
    # the library ignores the zone of a time, and takes its digits as UTC
    now = datetime.now(UTC)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(Webhook(key).sign(message_id, now, body.decode()) for key in keys),
    }
