"""Commands of an earlier place, and the screen that shows where all commands are."""

import pytest
import typer

from millrace.platform_defs.cli import app
from millrace.platform_defs.cli.moved import MOVED
from tests.support.command_line import millrace
from tests.support.pages.commands import commands

# the shop's
DECLARED = {"dev simulate", "dev simulate-crm"}


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_command_of_an_earlier_place_names_its_new_one_and_does_nothing(old: str, new: str) -> None:
    assert millrace(*old.split(), "argument", code=2) == f"millrace {old} is now: millrace {new}\n"


def test_each_new_place_is_one() -> None:
    there = commands(app) | DECLARED
    assert [new for new in MOVED.values() if new.split(" --")[0] not in there] == []
    assert set(MOVED) & there == set()


def test_the_first_help_fits_one_screen_and_names_each_verb_and_each_group() -> None:
    screen = millrace("--help", columns=80).splitlines()
    assert len(screen) <= 24
    assert max(map(len, screen)) <= 80
    listed = {line.split()[0] for line in screen if line.startswith("  ")}
    assert set(typer.main.get_group(app).commands) <= listed
    # a line each, and none is cut
    assert len(screen) == len(listed) + 6
    assert "..." not in " ".join(screen[1:])
