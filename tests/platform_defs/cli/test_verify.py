"""The command that verifies a whole store: its exit code, its one line for programs, its end by Ctrl-C."""

import os
import signal

import pytest

from millrace.errors import MillraceError, Unreachable
from millrace.event_store.platform import PlatformStore
from millrace.operations.verification import checks, models
from millrace.operations.verification.checks import Report, Watcher
from tests.support.command_line import millrace, parsed
from tests.support.factories import append_to, register_orders


@pytest.fixture
def orders(store: PlatformStore) -> PlatformStore:
    append_to(register_orders(store), *[f"o-{n % 3}" for n in range(9)])
    store.sequence_events()
    return store


@pytest.mark.usefixtures("orders")
def test_a_store_without_a_fault_ends_with_0_and_says_what_was_looked_at(dsn: str) -> None:
    output = millrace("verify", dsn=dsn)
    for said in ("9 positions of the log", "9 events in their streams", "0 checkpoints", "Nothing is wrong."):
        assert said in output
    (line,) = [line for line in millrace("verify", "--json", dsn=dsn).splitlines() if line.startswith("{")]
    assert parsed(line) == [vars(Report(positions=9, events=9))]
    with pytest.raises(MillraceError, match="log partition does not exist"):
        millrace("verify", "--partition", 16, dsn=dsn)


def test_a_fault_ends_with_1_and_is_a_sentence(orders: PlatformStore, dsn: str) -> None:
    orders.register_view("late", "-infinity")
    orders.connection.execute("update event_store.checkpoints set position = 99 where partition = 3")
    output = millrace("verify", dsn=dsn, code=1)
    fault = 'A view would pass over the next events: view "late", log partition 3: position 99, and the log ends at'
    assert (fault in output, "Nothing is wrong." in output) == (True, False)
    (line,) = [line for line in millrace("verify", "--json", dsn=dsn, code=1).splitlines() if line.startswith("{")]
    (found,) = parsed(line)
    assert (found["found"], found["faults"][0]["kind"]) == (1, "checkpoint_beyond_log")


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_gone_server_hides_no_findings(dsn: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    def gone(*_: object, **__: object) -> None:
        raise Unreachable("No Spark is there.")

    monkeypatch.setattr(models, "check_models", gone)
    with pytest.raises(Unreachable) as refused:
        millrace("verify", *arguments, dsn=dsn)
    (output,) = refused.value.__notes__
    assert ('"stopped": true' if arguments else "It was stopped: the rest was not looked at.") in output


@pytest.mark.usefixtures("orders")
def test_ctrl_c_ends_it_between_two_checks(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(connection: object, report: Report, watcher: Watcher) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        watcher.stop.wait()
        check_log(connection, report, watcher)  # type: ignore[arg-type]

    check_log = checks.check_log
    monkeypatch.setattr(checks, "check_log", interrupted)
    output = millrace("verify", dsn=dsn, code=1)
    assert "It was stopped: the rest was not looked at." in output
    assert "0 positions of the log" in output
    assert "Nothing is wrong." not in output
