"""The promises of each protocol hold in all its states; with a broken rule the search shows the way to a fault."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.support.protocols.checker import Broken, Protocol, check
from tests.support.protocols.pages import COMMAND, FOLDER, PROTOCOLS, name_of, page


@pytest.mark.parametrize("module", PROTOCOLS, ids=name_of)
def test_a_protocol_holds_its_promises_in_each_state(module: ModuleType) -> None:
    found = check(module.protocol())
    assert found.broken is None
    # a protocol with few states leaves something out
    assert len(found.graph) > 50


@pytest.mark.parametrize("module", PROTOCOLS, ids=name_of)
def test_its_page_says_what_happens_where_a_rule_is_broken(module: ModuleType) -> None:
    assert (FOLDER / f"{name_of(module)}.md").read_text() == page(module), f"Run: {COMMAND}"


def test_each_page_is_of_a_protocol() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*map(name_of, PROTOCOLS)}


def counter(*, is_bounded: bool = True) -> Protocol[int]:
    def steps(state: int) -> Iterator[tuple[str, int]]:
        if state < 4 or not is_bounded:
            yield "one more", state + 1
        if state == 2:
            yield "a leap", 9

    return Protocol(0, steps, {"It stays small.": lambda state: state < 9}, lambda state: state == 4)


def test_the_search_finds_a_shortest_way_to_a_fault() -> None:
    assert check(counter()).broken == Broken("It stays small.", (("one more", 1), ("one more", 2), ("a leap", 9)))


def test_the_search_finds_where_no_way_leads_to_an_end() -> None:
    way = (("one more", 1), ("one more", 2), ("a leap", 9))
    stuck = Protocol(0, counter().steps, {}, lambda state: state == 4)
    assert check(stuck).broken == Broken("The end can always be reached.", way)
    assert check(Protocol(0, counter().steps, {}, lambda state: state in {4, 9})).broken is None


def test_a_protocol_without_an_end_of_its_states_is_refused() -> None:
    with pytest.raises(AssertionError, match="grows without end"):
        check(Protocol(0, counter(is_bounded=False).steps, {}, lambda state: state == 4))
