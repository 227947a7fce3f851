"""Texts that people see: without passwords, and without characters that control a terminal."""

import re
import unicodedata

# the password of a URL, and that of a list of key=value or of a URL's parameters
_IN_URL = re.compile(r"(?<=://)([^\s/:@]*):[^\s/]*@")
_NAMED = re.compile(r"(?i)\b(password|sslpassword)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)")
# the password's place in a URL, with any characters: a mistyped URL is split elsewhere
_MISTYPED = re.compile(r"://[^:@]*:(.*)@", re.DOTALL)
_QUOTED = re.compile(r'"([^"]*)"')
_REPLACED = "\N{REPLACEMENT CHARACTER}"
# marks that change the direction of the following text
_DIRECTIONS = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def masked(text: str, *dsns: str) -> str:
    """Return a text with the passwords of connection strings replaced.

    Args:
        text: An error's text, for example.
        dsns: Connection strings that the text may be about: from a mistyped one Postgres quotes parts of the password
            as something else.
    """
    text = _NAMED.sub(r"\1\2***", _IN_URL.sub(r"\1:***@", text))
    secrets = [secret for dsn in dsns for secret in (*_MISTYPED.findall(dsn), *(m[3] for m in _NAMED.finditer(dsn)))]

    def hidden(quoted: re.Match[str]) -> str:
        return '"***"' if quoted[1] and any(quoted[1] in secret for secret in secrets) else quoted[0]

    return _QUOTED.sub(hidden, text)


def printable(text: str) -> str:
    """Return a text with control characters (C0, C1, DEL) replaced, except ends of lines and tabs."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(_REPLACED if _acts(character) else character for character in text)


def escaped(json_text: str) -> str:
    """Return a JSON text with the characters that `printable` replaces as escapes: its values stay the same."""
    if json_text.isprintable() and json_text.isascii():
        return json_text
    return "".join(f"\\u{ord(each):04x}" if _acts(each) else each for each in json_text)


def _acts(character: str) -> bool:
    if character in "\n\t":
        return False
    return character in _DIRECTIONS or unicodedata.category(character) == "Cc"
