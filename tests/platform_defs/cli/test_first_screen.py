"""The screen that shows where all commands are."""

import typer

from millrace.platform_defs.cli import app
from tests.support.command_line import millrace


def test_the_first_help_fits_one_screen_and_names_each_verb_and_each_group() -> None:
    screen = millrace("--help", columns=80).splitlines()
    assert len(screen) <= 24
    assert max(map(len, screen)) <= 80
    listed = {line.split()[0] for line in screen if line.startswith("  ")}
    assert set(typer.main.get_group(app).commands) <= listed
    # one line each, none cut
    assert len(screen) == len(listed) + 3
    assert "..." not in " ".join(screen[1:])
