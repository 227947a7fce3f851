"""What stands in data for a personal value: before it is sealed, while it is, and once its key is gone; and keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

SEALED = "$sealed"


class Sealed(dict[str, str]):
    """A value that this program cannot open: the envelope as it is stored. It may be appended again as it is."""

    @property
    def key_id(self) -> str:
        """The name of the key that opens it."""
        return self[SEALED].split(".")[1]


class Forgotten(Sealed):
    """A value whose key was destroyed. It is falsy, and appended again it holds nothing."""

    def __bool__(self) -> bool:
        """Return that there is no value."""
        return False


@dataclass(frozen=True)
class Plain:
    """A value of a person, `<kind>:<id>`: any of JSON, sealed when it is appended, and refused without a sealer."""

    subject: str
    value: Any = field(repr=False)

    @property
    def no_json(self) -> str:
        """Why it is not written as it is."""
        return "it has personal data, which are stored sealed only: give the store a sealer"


@dataclass(frozen=True)
class StoredKey:
    """A key as the store gives it: `wrapped` is None for a forgotten one, `settled` False for one just made."""

    key_id: str
    epoch: int
    wrapped: bytes | None
    subject_mac: bytes = b""
    settled: bool = True


@dataclass(frozen=True)
class Key:
    """A key to seal and open with; `cipher` is None for a forgotten one."""

    key_id: str
    cipher: "AESSIV | None"


def is_envelope(value: object) -> bool:
    """Return whether a value is a sealed one, as it stands in data."""
    text = value.get(SEALED) if isinstance(value, Mapping) and len(value) == 1 else None
    return isinstance(text, str) and text.count(".") == 3
