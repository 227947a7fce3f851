"""Whether a block of a page printed the output shown below it."""

import re

from tests.support.pages.documents import Block


def assert_printed(block: Block, printed: str) -> None:
    """Compare line by line; lines of frames do not count, as their width depends on the contents."""

    def plain(text: str) -> list[str]:
        lines = (re.sub(r"\s+", " ", re.sub("[─-╿]", " ", line)).strip() for line in text.splitlines())
        return [line for line in lines if not re.fullmatch(r"[-+| ]*", line)]

    promised, found = plain(block.printed or ""), plain(printed)
    assert len(promised) == len(found), f"{block}:\n{printed}"
    for line, other in zip(promised, found, strict=True):
        pattern = re.escape(line).replace(re.escape("..."), ".+")
        assert re.fullmatch(pattern, other), f"{block}:\n{printed}"
