"""How a value is sealed: AES-SIV (RFC 5297), which with one key and nonce gives the same bytes for the same value.

    1.<key_id>.<nonce>.<ciphertext>     each base64url without padding; version, key_id and nonce are authenticated

The nonce comes from the event and the path: an event that is sent again has the same bytes, and equal values of two
events look different. A value is padded with blanks to 16 bytes, so that its length tells little.
"""

import base64
import hashlib
import json
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from millrace.errors import Malformed

VERSION = "1"
# of the key in bytes: AES-256 twice, as SIV uses it
KEY_BYTES = 64
BLOCK = 16
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False)


def text_of(raw: bytes) -> str:
    """Return bytes as base64url, without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def bytes_of(text: str) -> bytes:
    """Return the bytes of base64url without padding."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def nonce_of(event_id: bytes, path: str) -> str:
    """Return the nonce of a value, by its event and its path within the data."""
    return text_of(hashlib.sha256(event_id + path.encode()).digest()[:16])


def json_of(value: Any) -> str:  # noqa: ANN401 - what JSON holds
    """Return the JSON text of a value, as it is sealed.

    Raises:
        Malformed: The value has no such text; the error does not quote it.
    """
    try:
        text = _ENCODER.encode(value)
        text.encode()
        return text
    except (TypeError, ValueError, RecursionError):
        pass  # outside of the handling: the error may have the value
    raise Malformed(
        "A personal value is no JSON.",
        hint="Pass texts, finite numbers, true, false, None, lists, and objects with texts as keys.",
    )


def seal(key: AESSIV, key_id: str, nonce: str, json_text: str) -> str:
    """Return the text in the envelope of a value that is JSON text."""
    plain = json_text.encode()
    padded = plain.ljust(-(-len(plain) // BLOCK) * BLOCK)
    return ".".join([VERSION, key_id, nonce, text_of(encrypt(key, padded, VERSION, key_id, nonce))])


def emptied(key_id: str) -> str:
    """Return the text in the envelope of a value that must not be kept: its key is gone."""
    return f"{VERSION}.{key_id}.0.0"


def open_sealed(key: AESSIV, envelope: str) -> Any:  # noqa: ANN401 - what JSON holds
    """Return the value of an envelope; raises as `decrypt`."""
    version, key_id, nonce, text = envelope.split(".")
    return json.loads(decrypt(key, bytes_of(text), version, key_id, nonce))


def encrypt(key: AESSIV, plain: bytes, *bound: str) -> bytes:
    """Return bytes sealed with a key, bound to texts without which they do not open."""
    return bytes(key.encrypt(plain, [each.encode() for each in bound]))


def decrypt(key: AESSIV, sealed: bytes, *bound: str) -> bytes:
    """Return what `encrypt` sealed; `ValueError` if the key or the texts are others, or the bytes were changed."""
    try:
        return bytes(key.decrypt(sealed, [each.encode() for each in bound]))
    except InvalidTag:
        raise ValueError("the key does not open it") from None
