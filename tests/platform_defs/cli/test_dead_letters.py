"""Dead letters on the command line: each event beside its error."""

import json
from typing import Any
from uuid import uuid4

import pytest

from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.cli.output import indented
from tests.support.command_line import ACTING, millrace
from tests.support.factories import append_to, pump
from tests.support.sql_calls import BatchEvent, append_events


@pytest.fixture
def view(orders: PlatformStore) -> PlatformStore:
    orders.register_view("v", "-infinity", max_attempts=1)
    return orders


def park(store: PlatformStore, decider_id: str, error: str = "no such customer", *, data: dict[str, Any]) -> None:
    """Make the first event of a stream a dead letter; one more waits behind it."""
    metadata = {"correlation_id": f"c-{decider_id}"}
    append_events(store, [BatchEvent("order", decider_id, "placed", uuid4(), data, uuid4(), metadata=metadata)])
    append_to(store, decider_id)
    pump(store, "v")
    (event,) = store.stream_events("v", 10)
    store.fail_event("v", decider_id, event.offset, error)


def shown(dsn: str, *arguments: str) -> str:
    return millrace("dead", "list", *arguments, dsn=dsn, columns=120)


def test_the_event_and_the_error_stand_side_by_side(view: PlatformStore, dsn: str) -> None:
    park(view, "a", data={"customer": {"id": 7}, "tags": ["x", "y"]})
    lines = shown(dsn, "v", "--show").splitlines()
    assert "v: order a" in lines[0]
    (first,) = (line for line in lines if "placed" in line)
    left, right = (part.strip() for part in first.split("│")[1:3])
    assert left.startswith("placed ")
    assert right == "no such customer"
    text = "\n".join(line.split("│")[1].rstrip() for line in lines if line.startswith("│"))
    assert ' {\n   "tags": [\n     "x",\n     "y"\n   ],\n   "customer": {\n     "id": 7\n   }\n }' in text
    assert "version 1, offset 1" in text
    assert '"correlation_id": "c-a"' in text
    assert "attempts: 1, events that wait: 2" in lines[-1]
    assert max(map(len, lines)) <= 120


def test_json_has_the_letter_and_with_show_its_event(view: PlatformStore, dsn: str) -> None:
    park(view, "a", data={"amount": 12})
    plain, with_event = (json.loads(shown(dsn, "--json", *more)) for more in ([], ["--show"]))
    (letter,) = view.dead_letters("v")
    assert plain == {**vars(letter), "parked_at": letter.parked_at and letter.parked_at.isoformat()}
    assert {name: value for name, value in with_event.items() if name != "failed_event"} == plain
    event = with_event["failed_event"]
    assert (event["offset"], event["version"], event["data"]) == (letter.offset, 1, {"amount": 12})
    assert event["metadata"] == {"correlation_id": "c-a"}


def test_streams_that_wait_for_a_retry_are_listed_with_their_errors(view: PlatformStore, dsn: str) -> None:
    park(view, "parked", data={})
    view.register_view("v", max_attempts=5)
    park(view, "waits", "not yet", data={"amount": 12})
    (waits,) = (json.loads(line) for line in shown(dsn, "v", "--waiting", "--json").splitlines())
    assert (waits["decider_id"], waits["last_error"], waits["parked_at"]) == ("waits", "not yet", None)
    assert "not yet" in shown(dsn, "--waiting")
    assert "waits for a retry, attempts: 1, events that wait: 2" in shown(dsn, "--waiting", "--show")


def test_more_than_are_shown_are_told(view: PlatformStore, dsn: str) -> None:
    for decider_id in ("a", "b", "c"):
        park(view, decider_id, data={})
    output = shown(dsn, "--show", "--limit", "2")
    assert "2 of 3 dead letters; --limit shows more." in output
    assert ("order a" in output, "order b" in output, "order c" in output) == (True, True, False)
    assert len(shown(dsn, "--json").splitlines()) == 3
    assert "--limit" not in shown(dsn, "--show")


def test_control_characters_of_others_do_not_reach_the_terminal(view: PlatformStore, dsn: str) -> None:
    park(view, f"a{ACTING}", f"no {ACTING}", data={ACTING: ACTING})
    for arguments in ((), ("--show",), ("--json",), ("--show", "--json")):
        output = shown(dsn, *arguments)
        assert not set(output) & set(ACTING)
        if "--json" in arguments:
            assert json.loads(output)["last_error"] == f"no {ACTING}"


def test_a_long_event_is_cut_and_json_has_all_of_it(view: PlatformStore, dsn: str) -> None:
    park(view, "a", data={"text": "x" * 50_000})
    output = shown(dsn, "--show")
    assert "--json has all 50," in " ".join(output.replace("│", " ").split())
    assert len(output) < 20_000
    assert json.loads(shown(dsn, "--show", "--json"))["failed_event"]["data"] == {"text": "x" * 50_000}


def test_without_dead_letters_it_says_so(view: PlatformStore, dsn: str) -> None:
    assert view.dead_letters() == []
    assert "There are no dead letters." in shown(dsn, "--show")
    assert shown(dsn, "--show", "--json") == ""


def test_a_letter_whose_view_wants_no_event_of_it_any_more_says_so(view: PlatformStore, dsn: str) -> None:
    park(view, "a", data={})
    view.register_view("v", events=["shipped"])
    assert "The view wants no event of this stream any more." in shown(dsn, "--show")
    assert json.loads(shown(dsn, "--show", "--json"))["failed_event"] is None


def test_numbers_of_an_indented_text_keep_their_digits() -> None:
    for text in ("{}", "[]", "1.10", "[" * 100_000, "1" * 5000):
        assert indented(text) == text
    assert indented('{"a": [1e400, "b"]}') == '{\n  "a": [\n    1e400,\n    "b"\n  ]\n}'
