"""A warm Spark, and the user's code changes: the next session has the modules of now, or says which one is missing."""

import json
import os
import sys
from pathlib import Path

import pytest

from millrace.resources.event_store import EventStore
from millrace.resources.spark.shipped_code import with_their_helpers, zip_of
from tests.support.building.drains import thing, things
from tests.support.building.own_declarations import BUILD_GREETINGS, SAY_WORDS, Place, declare, run_own, unset
from tests.support.factories import rows

__all__ = ["things"]

WORD = "def word() -> str:\n    return {!r}\n"


@pytest.fixture
def shared(spark_remote: str) -> Place:
    """Return the warm server with its one session that everybody shares."""
    assert ";session_id=" in spark_remote
    # a server may ask for a token
    token = {name: word for name, word in os.environ.items() if name == "SPARK_CONNECT_AUTHENTICATE_TOKEN"}
    return Place({**unset(), **token, "SPARK_REMOTE": spark_remote}, {}, sys.executable)


def say(place: Place, folder: Path) -> list[str]:
    said: list[str] = json.loads(run_own(SAY_WORDS, place, folder))
    return said


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.timeout(600)
def test_a_helper_that_is_changed_added_or_removed_is_so_in_the_next_session(shared: Place, tmp_path: Path) -> None:
    declare(tmp_path, "hello")
    assert say(shared, tmp_path) == ["hello"]
    declare(tmp_path, "goodbye")
    assert say(shared, tmp_path) == ["goodbye"]

    write(tmp_path, my_platform__words="from my_platform.added import word", my_platform__added=WORD.format("added"))
    assert say(shared, tmp_path) == ["added"]

    # beside the package, imported when it is needed
    late = "def word() -> str:\n    from phrases.long import word\n    return word()"
    write(tmp_path, my_platform__words=late, phrases__long=WORD.format("beside"))
    assert say(shared, tmp_path) == ["beside"]
    write(tmp_path, phrases__long=WORD.format("beside, changed"))
    assert say(shared, tmp_path) == ["beside, changed"]

    (tmp_path / "phrases" / "long.py").unlink()
    with pytest.raises(AssertionError, match=r"ModuleNotFoundError: No module named 'phrases"):
        say(shared, tmp_path)


@pytest.mark.timeout(600)
def test_a_drain_after_a_helper_changed_and_the_version_was_raised_builds_the_rows_of_now(
    things: EventStore, dsn: str, shared: Place, tmp_path: Path
) -> None:
    things.append_events([thing("a"), thing("b")])
    things.sequence_events()
    for version, word in enumerate(("hello", "goodbye"), start=1):
        declare(tmp_path, word)
        greetings = tmp_path / "my_platform" / "read_models" / "greetings.py"
        greetings.write_text(greetings.read_text().replace("@fold(", f"@fold(version={version}, "))
        run_own(BUILD_GREETINGS, shared, tmp_path, dsn, "{}")
        built = rows(things.connection, "select thing, word, times from read_models.greetings order by 1")
        assert built == [("a", word, 1), ("b", word, 1)]


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


def test_source_beside_a_package_comes_along_and_what_is_installed_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write(
        tmp_path,
        ours__a="import json\nimport pyarrow\nimport file_beside\nfrom . import b",
        ours__b="def late():\n    from beside.deep import x\n    import not_there.at_all",
        ours__broken="def (",
        file_beside="import beside_again, __main__",
        beside_again="import ours.a",
        beside__deep="import with_data.a",
        with_data__a="import of_with_data",
        of_with_data="x = 1",
        unused="x = 1",
    )
    (tmp_path / "with_data" / "rates.json").write_text("{}")
    ours = {"millrace": [tmp_path / "millrace"], "ours": [tmp_path / "ours"]}
    shipped, left = with_their_helpers(ours)
    assert shipped == ours | {
        "file_beside": [tmp_path / "file_beside.py"],
        "beside_again": [tmp_path / "beside_again.py"],
        "beside": [tmp_path / "beside"],
        "of_with_data": [tmp_path / "of_with_data.py"],
    }
    assert left == {"with_data": [tmp_path / "with_data"]}

    # what does not come along is imported anew all the same: its state has a session of its own
    before = zip_of({}, left)
    assert zip_of({}, left) == before
    (tmp_path / "with_data" / "rates.json").write_text('{"eur": 1}')
    assert zip_of({}, left) != before
