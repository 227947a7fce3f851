"""Texts that people see: without passwords, and without what makes a terminal do something.

Belongs here: what may be shown of a text that somebody else wrote. Not here: where it is shown.
"""

import re
import unicodedata

# the password of a URL, and that of a list of key=value, also as a parameter of a URL
_PASSWORDS = (
    (re.compile(r"(?<=://)([^\s/:@]*):[^\s/]*@"), r"\1:***@"),
    (re.compile(r"(?i)\b(password|passfile|sslpassword)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)"), r"\1\2***"),
)
_REPLACED = "\N{REPLACEMENT CHARACTER}"
# C0, C1 and DEL; marks that turn the direction of what follows, which no ordinary text needs
_CONTROLS = {"Cc"}
_DIRECTIONS = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def masked(text: str) -> str:
    """Return a text with the passwords of connection strings replaced."""
    for pattern, mask in _PASSWORDS:
        text = pattern.sub(mask, text)
    return text


def printable(text: str) -> str:
    """Return a text with control characters replaced, but for the ends of lines and tabs."""
    return "".join(
        _REPLACED if character in _DIRECTIONS or (unicodedata.category(character) in _CONTROLS and character not in "\n\t") else character
        for character in text
    )
