"""A user's declarations in a test's folder, and programs that use them in processes of their own."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.project import PROJECT
from tests.support.running.programs import ran

# A user's package: a fold in a folder without __init__, and a module that it imports. Spark pickles the fold by value,
# and the functions that it calls by name.
GREETINGS = '''
from millrace import fold
from millrace.rows import FoldEvent, State
from my_platform.words import word


@fold(view="greetings", deciders=["thing"], key="thing", columns={"word": "string", "times": "int"})
def greetings(state: State | None, event: FoldEvent) -> State | None:
    """One row per thing."""
    return {"word": word(), "times": (state or {"times": 0})["times"] + 1}
'''
BUILD_GREETINGS = """
import json
from millrace.drain.view_drain import ViewDrain
from millrace.spark import spark_session
from my_platform.read_models.greetings import greetings
dsn, configuration = sys.argv[1:]
with spark_session(json.loads(configuration)) as spark, ViewDrain(dsn, greetings, lambda: spark, "test") as consumer:
    consumer.drain(budget_s=600, idle_s=0)
"""
# several jobs, so that the server's Python processes with earlier imports are reused
SAY_WORDS = """
import json
import pyarrow as pa
from millrace.spark import spark_session
def say(batches):
    from my_platform.words import word
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"word": [word()]})
with spark_session() as spark:
    said = [row.word for _ in range(3) for row in spark.range(0, 10, 1, 2).mapInArrow(say, "word string").collect()]
print(json.dumps(sorted(set(said))))
"""


@dataclass(frozen=True)
class Place:
    """The environment that leads to a Spark, the settings of a session there, and the Python that runs its tasks."""

    env: dict[str, str]
    configuration: dict[str, str]
    python: str


def unset() -> dict[str, str]:
    return {name: word for name, word in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))}


def declare(folder: Path, word: str) -> None:
    """Write a package of declarations into a folder, without __init__: a fold, and a module that it imports."""
    rooms = folder / "my_platform" / "read_models"
    rooms.mkdir(parents=True, exist_ok=True)
    (rooms / "greetings.py").write_text(GREETINGS)
    (folder / "my_platform" / "words.py").write_text(f"def word() -> str:\n    return {word!r}\n")


def run_own(program: str, place: Place, folder: Path, *arguments: str) -> str:
    """Run a program with a folder's declarations in a process of its own, like a run; return its output."""
    whole = f"import sys; sys.path += [{str(PROJECT)!r}, {str(folder)!r}]\n{program}"
    env = {**place.env, "MILLRACE_DECLARATIONS": "my_platform"}
    return ran(sys.executable, "-c", whole, *arguments, cwd=folder, env=env, patiences=5).stdout
