"""The pictures of the documents: each picture on a page exists and is small, and each file is on a page."""

from pathlib import Path

from tests.support.pages.documents import PAGES, pictures
from tests.support.project import PROJECT

MOST_BYTES = 150_000


def shown() -> set[Path]:
    return {(PROJECT / page).parent / picture for page in PAGES for picture in pictures(page)}


def test_the_pictures_are_those_that_are_shown_and_small() -> None:
    assert shown()
    assert [str(picture) for picture in shown() if not picture.is_file()] == []
    assert [str(picture) for picture in shown() if picture.stat().st_size > MOST_BYTES] == []
    # no unused picture is kept
    assert {*(PROJECT / "docs").rglob("*.png")} - shown() == set()
