"""The pictures of the documents: each picture on a page exists and is small, and each file is on a page."""

from pathlib import Path

from scripts.draw_rooms import PICTURE, drawn
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
    assert {*(PROJECT / "docs").rglob("*.png"), *(PROJECT / "docs").rglob("*.svg")} - shown() == set()


def test_the_picture_of_the_rooms_is_that_of_their_imports() -> None:
    assert PICTURE.read_text() == drawn(), "Run: .venv/bin/python -m scripts.draw_rooms"
