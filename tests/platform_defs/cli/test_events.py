"""Events on the command line: the output on a terminal and as JSON."""

import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from millrace.errors import EventNotRegistered
from millrace.event_store.platform import PlatformStore
from tests.support.command_line import ACTING, millrace, parsed
from tests.support.factories import append_to, set_clock
from tests.support.patience import patience
from tests.support.running.deployment import MILLRACE
from tests.support.sql_calls import BatchEvent, append_events

HOSTILE = f"{ACTING}[31m"


def events(dsn: str, *arguments: str, columns: int = 120) -> str:
    return millrace("show", "events", *arguments, dsn=dsn, columns=columns)


def test_the_newest_come_last_and_it_says_that_there_may_be_more(orders: PlatformStore, dsn: str) -> None:
    append_to(orders, *[f"o-{n}" for n in range(25)])
    orders.sequence_events()
    lines = events(dsn).splitlines()
    assert len(lines) == 1 + 20 + 1
    assert "o-5" in lines[1]
    assert "o-24" in lines[20]
    assert lines[21] == "The newest 20; --limit shows more, --since and --stream show others."
    assert len(events(dsn, "--limit", "30").splitlines()) == 1 + 25


def test_the_table_fits_the_terminal_and_shows_each_id_whole(orders: PlatformStore, dsn: str) -> None:
    long = "-".join(["order"] * 20)
    append_events(orders, [BatchEvent("order", long, "placed", uuid4(), {"text": "x" * 5000}, uuid4())])
    for columns in (80, 120, 250):
        lines = events(dsn, columns=columns).splitlines()
        assert max(map(len, lines)) <= columns
        start, end = lines[0].index("stream"), lines[0].index("v ")
        assert "".join(line[start:end].strip() for line in lines[1:]) == f"order{long}"


def test_json_has_all_of_an_event_and_every_digit(orders: PlatformStore, dsn: str) -> None:
    metadata = {"correlation_id": "request-7", "attempt": 2}
    event = BatchEvent("order", "o-1", "placed", uuid4(), {"amount": 1}, uuid4(), final=True, metadata=metadata)
    append_events(orders, [event])
    text = '{"amount": 12345678901234567890.1234567890123456789, "note": "first\\nsecond"}'
    orders.connection.execute(
        "select event_store.append_event('placed', gen_random_uuid(), 'order', 'o-2', %s, gen_random_uuid(), null)",
        (text,),
    )
    orders.sequence_events()
    output = events(dsn, "--json")
    first, second = parsed(output)
    place = orders.log_position(event.event_id)
    assert place is not None
    assert first == {
        "offset": 1, "partition": place.partition, "position": 0, "decider": "order", "decider_id": "o-1",
        "version": 1, "event": "placed", "event_version": 1, "event_id": str(event.event_id),
        "command_id": str(event.command_id), "previous_id": None, "final": True, "created_at": first["created_at"],
        "metadata": metadata, "data": {"amount": 1},
    }  # fmt: skip
    assert datetime.fromisoformat(first["created_at"]).tzinfo is not None
    assert second["data"]["note"] == "first\nsecond"
    assert second["metadata"] is None
    assert "12345678901234567890.1234567890123456789" in output


def test_filters_are_those_of_the_store(orders: PlatformStore, dsn: str) -> None:
    set_clock(orders.connection, (datetime.now(UTC) - timedelta(hours=3)).isoformat())
    append_to(orders, "old")
    set_clock(orders.connection, "")
    marked = BatchEvent("invoice", "i-1", "paid", uuid4(), {}, uuid4(), metadata={"correlation_id": "request-7"})
    append_events(orders, [marked])
    append_to(orders, "new")

    def ids(*arguments: str) -> list[str]:
        return [event["decider_id"] for event in parsed(events(dsn, "--json", *arguments))]

    assert ids() == ["old", "i-1", "new"]
    assert ids("--decider", "order") == ["old", "new"]
    assert ids("--stream", "old") == ["old"]
    assert ids("--event", "paid") == ["i-1"]
    assert ids("--correlation", "request-7") == ["i-1"]
    assert ids("--since", "2h") == ["i-1", "new"]
    assert ids("--since", "2000-01-01T00:00:00Z") == ["old", "i-1", "new"]
    assert ids("--since", "2h", "--decider", "order", "--stream", "old") == []
    assert "There are no such events." in events(dsn, "--stream", "o-99")


def test_names_and_times_that_are_none_are_refused_with_what_is(orders: PlatformStore, dsn: str) -> None:
    assert orders.latest_events() == []
    with pytest.raises(EventNotRegistered, match="Registered are: invoice, order"):
        events(dsn, "--decider", "ordr")
    with pytest.raises(EventNotRegistered, match="Registered are: paid, placed, shipped"):
        events(dsn, "--decider", "order", "--event", "payed")
    for since, said in (("yesterday", "how long ago"), ("2030-01-01T00:00:00", "has no zone"), ("2y", "how long ago")):
        assert said in millrace("show", "events", "--since", since, dsn=dsn, code=2)


def test_control_characters_of_others_do_not_reach_the_terminal(orders: PlatformStore, dsn: str) -> None:
    metadata = {"correlation_id": f"c{HOSTILE}", "user": HOSTILE}
    hostile = BatchEvent("order", f"o{HOSTILE}", "placed", uuid4(), {HOSTILE: HOSTILE}, uuid4(), metadata=metadata)
    append_events(orders, [hostile])
    assert not set(events(dsn)) & set(ACTING)
    output = events(dsn, "--json")
    assert not set(output) & set(ACTING)
    (shown,) = parsed(output)
    assert (shown["decider_id"], shown["data"], shown["metadata"]) == (hostile.decider_id, hostile.data, metadata)


def test_new_events_are_followed_until_ctrl_c(orders: PlatformStore, dsn: str) -> None:
    append_to(orders, "a")
    orders.sequence_events()
    command: list[str | Path] = [MILLRACE, "show", "events", "--follow", "--dsn", dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # the header
            assert " a " in process.stdout.readline()
            for number in range(3):
                append_to(orders, f"new-{number}")
                orders.sequence_events()
                # one line per event, and no second header
                assert f"new-{number}" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            rest, said = process.communicate(timeout=patience())
        finally:
            process.kill()
    assert (rest, said, process.returncode) == ("", "", 0)
