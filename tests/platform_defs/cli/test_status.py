"""`millrace status`: its line for each view, their order, and that they fit."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millrace.event_store import ViewBeyondLog
from millrace.event_store.platform import PlatformStore
from millrace.platform_defs.cli.system import age, short
from millrace.platform_defs.local.supervisor import Service, Supervisor
from tests.platform_defs.cli.test_views import park
from tests.support.command_line import cells, millrace
from tests.support.factories import append_to, ids_of_one_partition, new_event, register_orders, set_clock
from tests.support.patience import patience, wait_until
from tests.support.running.deployment import MILLRACE
from tests.support.sql_calls import append_events, get_events


def ago(**time: int) -> str:
    """Return the time that long ago: commands are separate processes with the true time."""
    return str(datetime.now(UTC) - timedelta(**time))


@pytest.fixture
def orders(orders: PlatformStore) -> PlatformStore:
    set_clock(orders.connection, ago(minutes=5))
    return orders


def test_status_shows_every_view_the_worst_first(view: PlatformStore, dsn: str) -> None:
    park(view, "a")
    view.register_view("off", "-infinity", mode="bulk", events=["placed"])
    view.enable_view("off", enabled=False)
    # this view wants none of the events: the positions ahead of it are no lag
    view.register_view("paid", "-infinity", mode="bulk", events=["paid"])
    assert cells(millrace("status", dsn=dsn)) == [
        ["v", "rows", "3", "5 m", "0", "0", "1", "1"],
        ["off", "off", "3", "5 m", "3", "0", "0", "0"],
        ["paid", "bulk", "0", "", "3", "0", "0", "0"],
    ]
    view.register_view("late", "-infinity", mode="bulk", events=["shipped"])
    set_clock(view.connection, ago(days=3))
    append_events(view, [new_event("c", event="shipped")])
    view.sequence_events()
    lines = cells(millrace("status", dsn=dsn))
    # the oldest lag first; at the same age, dead letters first
    assert [(line[0], line[2], line[3]) for line in lines] == [
        ("v", "4", "3 d"), ("late", "1", "3 d"), ("off", "3", "5 m"), ("paid", "0", "")
    ]  # fmt: skip


def test_status_in_json_has_whole_names_and_ages_in_seconds(view: PlatformStore, dsn: str) -> None:
    name = "a view with a name that is longer than a line of a terminal has room for " * 2
    view.register_view(name.strip(), "-infinity", mode="bulk")
    said = json.loads(millrace("status", "--json", dsn=dsn))
    assert [problem.partition(".")[0] for problem in said["problems"]] == [f"{name.strip()} is late", "v is late"]
    # a shared remedy is printed once
    remedy = "The ticks of the sensor `poll_read_models`"
    assert (sum(remedy in each for each in said["problems"]), millrace("status", dsn=dsn).count(remedy)) == (2, 1)
    assert [(row["view"], row["lag"], row["exact"], row["behind"]) for row in said["views"]] == [
        (name.strip(), 3, True, 3),
        ("v", 3, True, 0),
    ]
    assert all(300 <= row["lag_seconds"] < 300 + patience() for row in said["views"])


def test_status_fits_a_terminal_of_80_columns(view: PlatformStore, dsn: str) -> None:
    for n in range(3):
        view.register_view(f"a_view_with_a_name_that_is_long_{n}", "-infinity", mode="bulk")
    # the text of a fault is not wrapped
    view.connection.execute("update event_store.views set max_lag_s = 3600")
    output = millrace("status", dsn=dsn, columns=80)
    assert max(map(len, output.splitlines())) <= 80
    names = [line[0] for line in cells(output)]
    assert names[:3] == ["a_view_with_a_na…"] * 3
    assert names[3] == "v"


def test_status_is_shown_anew_until_somebody_stops_it(view: PlatformStore, dsn: str) -> None:
    command: list[str | Path] = [MILLRACE, "status", "--json", "--watch", "0.5", "--dsn", dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["views"][0]["behind"] == 0
        append_to(view, "d")
        view.sequence_events()
        wait_until(
            lambda: json.loads((watching.stdout and watching.stdout.readline()) or "")["views"][0]["behind"] == 1,
            "it says what is new",
        )
        watching.send_signal(signal.SIGINT)
        assert watching.wait(patience()) == 0


def test_numbers_and_ages_are_short() -> None:
    numbers = (0, 9999, 10_000, 999_999, 9_999_999, 10_000_000)
    assert [short(number) for number in numbers] == ["0", "9999", "10k", "999k", "9999k", "10M"]
    ages = (0.4, 119, 120, 7199, 7200, 200_000)
    assert [age(seconds) for seconds in ages] == ["0 s", "119 s", "2 m", "119 m", "2 h", "2 d"]


def test_status_finds_a_checkpoint_beyond_the_end(store: PlatformStore, dsn: str) -> None:
    register_orders(store)
    (stream,) = ids_of_one_partition(store.connection, 1, 3)
    for view in ("behind", "at the end", "odd view"):
        store.register_view(view, "-infinity", mode="bulk")
    append_to(store, stream, stream)
    store.commit_batch("at the end", store.claim_batch("at the end", "run"))
    assert store.views_beyond_log() == []
    # as after a restore of single tables
    store.connection.execute("update event_store.checkpoints set position=7 where view = 'odd view' and partition = 3")
    assert store.views_beyond_log() == [ViewBeyondLog("odd view", 3, 7, 2)]
    said = millrace("status", "--json", dsn=dsn)
    assert "The view odd view stands beyond the end of the log. It stands at position 7 of log partition 3" in said
    assert "millrace view seek 'odd view' RESET_TO_EARLIEST" in said
    # apply the remedy
    store.seek_view("odd view", "RESET_TO_EARLIEST")
    assert store.views_beyond_log() == []
    leases = store.claim_batch("odd view", "run")
    found = [event.offset for lease in leases for event in store.read_batch("odd view", lease)]
    assert found == [event.offset for event in get_events(store, stream, "order")]


def test_status_names_a_service_that_is_not_up(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    for home in (tmp_path, tmp_path / "watched" / "spark"):
        slow = Service("spark", [sys.executable, "-c", "input()"], dict(os.environ), lambda: False)
        supervisor = Supervisor(home, [slow, replace(slow, name="web", argv=["sleep", "600"], ready=lambda: True)])
        supervisor.start()
        supervisor.poll()
        line = f"The service spark is not up, it is .*It ended with exit code 1. Its log: {home}/logs/spark.log"
        (problem,) = json.loads(millrace("status", "--json", dsn=dsn))["problems"]
        supervisor.stop()
        assert re.fullmatch(line, problem)
        assert json.loads(millrace("status", "--json", dsn=dsn))["problems"] == []
