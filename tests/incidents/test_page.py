"""Every command in docs/incidents.md is run by a test."""

import ast

from tests.support.incidents.page import PAGE
from tests.support.pages.documents import chapters
from tests.support.project import PROJECT


def test_each_chapter_with_commands_is_followed_by_a_test() -> None:
    followed = {
        call.args[0].value if isinstance(call.args[0], ast.Constant) else None
        for folder in ("incidents", "processes/incidents")
        for file in (PROJECT / "tests" / folder).glob("test_*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "incident"
    } - {None}
    with_commands = {name for name, blocks in chapters(PAGE).items() if any(block.language == "sh" for block in blocks)}
    assert followed == with_commands
