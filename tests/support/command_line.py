"""Commands of `millrace`, typed in this process."""

import json
from typing import Any

import psycopg
from typer.testing import CliRunner

from millrace.errors import MillraceError
from millrace.platform_defs.cli import app

# characters that act on a terminal
ACTING = "\x1b\x9b\r\x07\x7f\x08\u202e"


def millrace(
    *arguments: object, dsn: str | None = None, answer: str | None = None, columns: int = 250, code: int = 0, **env: str
) -> str:
    """Run a command and return its output; raise a refusal with a note of the output before it."""
    words = [*map(str, arguments), *(("--dsn", dsn) if dsn is not None else ())]
    result = CliRunner().invoke(app, words, env={"COLUMNS": str(columns), **env}, input=answer)
    if isinstance(result.exception, MillraceError | psycopg.Error):
        result.exception.add_note(result.output)
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def cells(output: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")]


def parsed(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]
