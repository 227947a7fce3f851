"""Redacted texts: no password, no control sequence of a terminal."""

import io
import json

import pytest
from rich.text import Text

from millrace.platform_defs.cli.output import table
from millrace.platform_defs.screen import Screen
from millrace.redact import escaped, masked, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:hunter2@h/d", "postgresql://u:***@h/d"),
        ("at postgresql://u:hu:nt@er2@h/d?x=1 nobody", "at postgresql://u:***@h/d?x=1 nobody"),
        ("postgresql://h/d?user=u&password=hunter2&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("host=h password='hunter2 and more' user=u", "host=h password=*** user=u"),
        ("host=h password = hunter2", "host=h password = ***"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("http://127.0.0.1:3000/runs", "http://127.0.0.1:3000/runs"),
    ],
)
def test_passwords_of_connection_strings_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_parts_of_a_mistyped_password_are_masked() -> None:
    said = 'invalid integer value "hun" for connection option "port"'
    assert masked(said, "postgresql://u:hun/ter2@h/d") == 'invalid integer value "***" for connection option "port"'
    assert masked(said, "postgresql://u:other@h/d", "status") == said


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    written = io.StringIO()
    for name in ("[bold]orders", "[/nothing]", ":smile:"):
        Screen(file=written, width=80).print(f"{name}: 3 rows")
        Screen(file=written, width=80).print(table(name, (name,), [[name]]))
        assert written.getvalue().count(name) == 4


@pytest.mark.parametrize("bad", ["\x1b[31m", "\x9b2J", "\r", "\x07", "\x00", "\x7f", "\x08", "\u202e"])
def test_control_characters_do_not_reach_the_terminal(bad: str) -> None:
    assert printable(f"a{bad[0]}ä\n\tb") == "a\N{REPLACEMENT CHARACTER}ä\n\tb"
    written = io.StringIO()
    screen = Screen(file=written, width=80)
    screen.print(table(f"title {bad}", ("column",), [[f"cell {bad}"]]))
    screen.print(Text(f"text {bad}", style="red"))
    screen.print(f"plain {bad}")
    assert bad[0] not in written.getvalue()
    text = f'"a{bad[0]}ä"'
    assert bad[0] not in escaped(text)
    assert json.loads(escaped(text), strict=False) == f"a{bad[0]}ä"
    assert written.getvalue().count("\N{REPLACEMENT CHARACTER}") >= 1
