"""The user's code changes under a warm Spark: the next session has the current modules, or names the missing one."""

import json
import os
import sys
from pathlib import Path

import pytest

from millrace.spark.session import SPARK_TOKEN
from tests.spark.test_shipped_code import write
from tests.support.building.own_declarations import SAY_WORDS, Place, declare, run_own, unset

WORD = "def word() -> str:\n    return {!r}\n"


@pytest.fixture
def shared(spark_remote: str) -> Place:
    """Return the warm server with its one shared session."""
    assert ";session_id=" in spark_remote
    return Place({**unset(), SPARK_TOKEN: os.environ[SPARK_TOKEN], "SPARK_REMOTE": spark_remote}, {}, sys.executable)


def say(place: Place, folder: Path) -> list[str]:
    said: list[str] = json.loads(run_own(SAY_WORDS, place, folder))
    return said


@pytest.mark.timeout(600)
def test_changed_helpers_count_in_the_next_session(shared: Place, tmp_path: Path) -> None:
    declare(tmp_path, "hello")
    assert say(shared, tmp_path) == ["hello"]
    declare(tmp_path, "goodbye")
    assert say(shared, tmp_path) == ["goodbye"]

    write(tmp_path, my_platform__words="from my_platform.added import word", my_platform__added=WORD.format("added"))
    assert say(shared, tmp_path) == ["added"]

    # a module beside the package, imported lazily
    late = "def word() -> str:\n    from phrases.long import word\n    return word()"
    write(tmp_path, my_platform__words=late, phrases__long=WORD.format("beside"))
    assert say(shared, tmp_path) == ["beside"]
    write(tmp_path, phrases__long=WORD.format("beside, changed"))
    assert say(shared, tmp_path) == ["beside, changed"]

    (tmp_path / "phrases" / "long.py").unlink()
    with pytest.raises(AssertionError, match=r"ModuleNotFoundError: No module named 'phrases"):
        say(shared, tmp_path)


# two sessions of one process, one after the other
SAY_TWICE = f"""
from pathlib import Path
{SAY_WORDS}
words = Path("my_platform/words.py")
words.write_text(words.read_text().replace("hello", "goodbye!"))
{SAY_WORDS}
"""


@pytest.mark.timeout(600)
def test_a_local_session_never_uses_the_processes_of_the_one_before_it(tmp_path: Path) -> None:
    declare(tmp_path, "hello")
    place = Place({**unset(), "PYTHONPATH": str(tmp_path)}, {}, sys.executable)
    said = run_own(SAY_TWICE, place, tmp_path)
    assert [json.loads(line) for line in said.splitlines()] == [["hello"], ["goodbye!"]]
