r"""Personal values within JSON text, for captures and imports: marked, until they are sealed on the way to the store.

    {"id": 7, "email": \0customer:7\0email\0"eve@example.com"\0}      the person, the path, and the value as JSON

No text of Postgres has a NUL: what is still marked is never stored.
"""

from collections.abc import Callable, Iterable

MARK = "\0"


def marked(subject: str, path: str, value: str) -> str:
    """Return a value, JSON text, with the person that it is of and its path."""
    return f"{MARK}{subject}{MARK}{path}{MARK}{value}{MARK}"


def people_of(texts: Iterable[str]) -> list[str]:
    """Return the people of the marked values in texts, each once."""
    return [*dict.fromkeys(subject for text in texts for subject in text.split(MARK)[1::4])]


def changed(text: str, change: Callable[[str, str, str], str]) -> str:
    """Return a text with what a function gives for person, path and value in place of each marked value."""
    parts = text.split(MARK)
    parts[1::4] = map(change, parts[1::4], parts[2::4], parts[3::4])
    del parts[2::4], parts[2::3]  # path and value
    return "".join(parts)
