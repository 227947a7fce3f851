from dataclasses import replace

import pytest

from millrace.platform_defs.polling import (
    BACKOFF_S,
    LONGEST_BACKOFF_S,
    STARTUP_S,
    Poll,
    SharedRun,
    Start,
    ViewRuns,
    backoff_s,
    in_turn,
    plan_polls,
    plan_together,
)
from millrace.resources.event_store import ViewPoll

NOW = 1_000_000.0


def row(
    *,
    view: str = "orders",
    due: int = 5,
    enabled: bool = True,
    pooling_delay_s: int | None = 1,
    consumers: int = 0,
) -> ViewPoll:
    return ViewPoll(view, "bulk", enabled, pooling_delay_s, None, due, consumers)


def reason(poll_row: ViewPoll, runs: ViewRuns | None = None) -> str:
    (poll,) = plan_polls([poll_row], {poll_row.view: runs} if runs else {}, NOW)
    assert not poll.start
    return poll.reason


def starts(poll_row: ViewPoll, runs: ViewRuns | None = None) -> bool:
    (poll,) = plan_polls([poll_row], {poll_row.view: runs} if runs else {}, NOW)
    return poll.start is Start.ALONE


def test_a_view_that_is_behind_and_was_never_drained_is_drained_now() -> None:
    assert starts(row())


def test_a_view_without_new_events_is_left_alone() -> None:
    assert reason(row(due=0)) == "orders: nothing is due"


def test_a_disabled_view_is_left_alone() -> None:
    assert reason(row(enabled=False)) == "orders: the view is disabled"


def test_a_view_without_pooling_delay_is_left_to_its_client() -> None:
    assert reason(row(pooling_delay_s=None)).endswith("its client polls by itself")


def test_a_view_with_a_url_is_pushed_to_also_without_pooling_delay() -> None:
    pushed = ViewPoll(
        "mails", "rows", enabled=True, pooling_delay_s=None, edge_function_url="http://x/", due=1, consumers=0
    )
    assert starts(pushed)


def test_a_drain_in_flight_is_enough() -> None:
    assert reason(row(), ViewRuns(in_flight=True, started=NOW - 3)) == "orders: a drain is in flight, 5 due"


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((999, 0), "999 due"),
        ((1000, 0), "1000 or more due"),
        ((1500, 1000), "1500 or more due"),
        ((1500, 700), "1500 due"),
    ],
)
def test_what_the_store_counts_to_its_bound_is_said_so(counts: tuple[int, int], words: str) -> None:
    counted = replace(row(due=counts[0]), retries=counts[1])
    assert reason(counted, ViewRuns(in_flight=True)) == f"orders: a drain is in flight, {words}"


def test_a_queued_drain_is_enough_however_long_it_waits() -> None:
    assert not starts(row(), ViewRuns(in_flight=True))


def test_a_drain_in_flight_for_long_whose_consumer_lives_is_enough() -> None:
    assert not starts(row(consumers=1), ViewRuns(in_flight=True, started=NOW - STARTUP_S - 1))


def test_a_drain_in_flight_for_long_without_a_live_consumer_is_taken_for_dead() -> None:
    assert starts(row(), ViewRuns(in_flight=True, started=NOW - STARTUP_S - 1))


def test_the_pooling_delay_is_kept_between_drains() -> None:
    assert "pooling_delay_s of 60" in reason(row(pooling_delay_s=60), ViewRuns(last_ended=NOW - 59))
    assert starts(row(pooling_delay_s=60), ViewRuns(last_ended=NOW - 60))


@pytest.mark.parametrize(("failures", "wait"), [(1, BACKOFF_S), (2, 2 * BACKOFF_S), (3, 4 * BACKOFF_S)])
def test_failures_in_a_row_back_off_twice_as_long_each_time(failures: int, wait: float) -> None:
    assert "failed in a row" in reason(row(), ViewRuns(last_ended=NOW - wait + 1, failures=failures))
    assert starts(row(), ViewRuns(last_ended=NOW - wait, failures=failures))


def test_the_backoff_is_bounded() -> None:
    assert backoff_s(10_000) == LONGEST_BACKOFF_S


def test_each_view_is_decided_by_itself() -> None:
    polls = plan_polls([row(view="a"), row(view="b", due=0)], {"a": ViewRuns()}, NOW)
    assert [(poll.view, poll.start) for poll in polls] == [("a", Start.ALONE), ("b", None)]


def test_views_take_turns_behind_the_one_that_was_last() -> None:
    assert in_turn(["c", "a", "b"], None, 2) == ["a", "b"]
    assert in_turn(["c", "a", "b"], "b", 2) == ["c", "a"]
    assert in_turn(["c", "a", "b"], "c", 9) == ["a", "b", "c"]
    assert in_turn(["c", "a", "b"], "gone", 9) == ["a", "b", "c"]
    assert in_turn(["a"], None, 0) == in_turn(["a"], None, -3) == in_turn([], None, 3) == []


# A run of many views ----------------------------------------------------------------------------------------------

JOINED = SharedRun(ViewRuns(in_flight=True, started=NOW - 100), lives=True)


def together(
    poll_row: ViewPoll,
    shared: SharedRun | None = None,
    own: ViewRuns | None = None,
    alone: str | None = None,
) -> Poll:
    return plan_together(poll_row, own or ViewRuns(), shared or SharedRun(), alone, NOW)


def test_a_view_that_is_due_asks_for_a_run_of_all_views() -> None:
    assert together(row()) == Poll("orders", Start.TOGETHER, "orders: 5 due")


def test_a_view_that_the_shared_run_is_attached_to_needs_no_run() -> None:
    assert together(row(consumers=1), JOINED) == Poll(
        "orders", None, "orders: drained together with other views, 5 due"
    )


def test_a_shared_run_that_starts_is_waited_for() -> None:
    poll = together(row(), SharedRun(ViewRuns(in_flight=True), starting=True))
    assert poll == Poll("orders", None, "orders: a drain of all views starts, 5 due")


def test_a_view_that_the_shared_run_left_gets_a_run_of_its_own() -> None:
    left = replace(JOINED, left={"orders": "a bad value"})
    assert together(row(), left) == Poll(
        "orders", Start.ALONE, "orders: 5 due, by itself: the drain of all views left it: a bad value"
    )
    assert together(row(), JOINED).reason.endswith("by itself: the drain of all views does not consume it")
    failing = ViewRuns(last_ended=NOW - 1, failures=3)
    assert "3 drains failed in a row" in together(row(), JOINED, failing).reason


def test_a_shared_run_that_died_is_replaced() -> None:
    dead = SharedRun(ViewRuns(in_flight=True, started=NOW - 100), lives=False)
    assert together(row(), dead).start is Start.TOGETHER


def test_a_view_that_left_the_last_shared_run_gets_its_own_until_one_of_these_ends_well() -> None:
    # the shared one had no other view, so it is attached to none, or has ended
    for runs in (JOINED.runs, ViewRuns(last_ended=NOW - 100)):
        left = SharedRun(runs, lives=False, left={"orders": "a bad value"}, since=NOW - 200)
        assert together(row(), left).start is Start.ALONE
        assert together(row(view="other"), left).start is Start.TOGETHER
        ended_before = ViewRuns(last_ended=NOW - 201)
        assert together(row(), left, ended_before).start is Start.ALONE
        failed_since = ViewRuns(last_ended=NOW - 100, failures=1)
        assert together(row(), left, failed_since).start is Start.ALONE
        mended = ViewRuns(last_ended=NOW - 100)
        assert together(row(), left, mended).start is Start.TOGETHER


def test_a_view_that_left_is_not_kept_waiting_for_a_shared_run_that_began_just_now() -> None:
    began = SharedRun(ViewRuns(in_flight=True), starting=True, left={"orders": "a bad value"}, since=NOW)
    assert together(row(), began).start is Start.ALONE


def test_shared_runs_that_fail_again_and_again_make_each_view_try_by_itself() -> None:
    failing = SharedRun(ViewRuns(last_ended=NOW - 1, failures=3))
    assert together(row(), failing) == Poll(
        "orders", Start.ALONE, "orders: 5 due, by itself: 3 drains of all views failed in a row"
    )


def test_shared_runs_that_fail_in_a_row_back_off() -> None:
    assert "2 drains failed in a row" in together(row(), SharedRun(ViewRuns(last_ended=NOW - 1, failures=2))).reason


def test_a_view_with_a_reason_gets_a_run_of_its_own_beside_the_shared_one() -> None:
    poll = together(row(consumers=1), JOINED, alone="it is far behind")
    assert poll == Poll("orders", Start.ALONE, "orders: 5 due, by itself: it is far behind")


def test_a_run_of_the_views_own_in_flight_is_enough() -> None:
    own = ViewRuns(in_flight=True, started=NOW - 3)
    for shared in (JOINED, SharedRun()):
        assert together(row(), shared, own, "it is far behind").reason == "orders: a drain is in flight, 5 due"
    died = ViewRuns(in_flight=True, started=NOW - STARTUP_S - 1)
    assert together(row(), SharedRun(), died).start is Start.TOGETHER


def test_a_view_that_rests_asks_for_nothing() -> None:
    assert together(row(due=0)).reason == "orders: nothing is due"
    assert together(row(enabled=False), alone="it is far behind").reason == "orders: the view is disabled"
