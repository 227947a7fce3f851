"""Whether a view is drained now, and by which run: decided by what is known, without a database."""

from dataclasses import replace

from millrace.platform_defs.polling import (
    BACKOFF_S,
    LONGEST_BACKOFF_S,
    SHARED_REST_S,
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


PUSHED = ViewPoll(
    "mails", "rows", enabled=True, pooling_delay_s=None, edge_function_url="http://x/", due=1, consumers=0
)
OLD = NOW - STARTUP_S - 1
# what is decided of a view: its row, its runs, and why no run starts; none where one does
DECIDED: tuple[tuple[ViewPoll, ViewRuns | None, str | None], ...] = (
    (row(), None, None),
    (row(due=0), None, "orders: nothing is due"),
    (row(enabled=False), None, "orders: the view is disabled"),
    (row(pooling_delay_s=None), None, "its client polls by itself"),
    # one with a URL is pushed to, also without a delay
    (PUSHED, None, None),
    (row(), ViewRuns(in_flight=True, started=NOW - 3), "orders: a drain is in flight, 5 due"),
    # one that is queued is enough, however long it waits
    (row(), ViewRuns(in_flight=True), "a drain is in flight"),
    # one that began long ago is enough while its consumer lives, and dead without one
    (row(consumers=1), ViewRuns(in_flight=True, started=OLD), "a drain is in flight"),
    (row(), ViewRuns(in_flight=True, started=OLD), None),
    # the delay is kept between drains
    (row(pooling_delay_s=60), ViewRuns(last_ended=NOW - 59), "pooling_delay_s of 60"),
    (row(pooling_delay_s=60), ViewRuns(last_ended=NOW - 60), None),
    # what the store counts to its bound is said so
    (row(due=999), ViewRuns(in_flight=True), "orders: a drain is in flight, 999 due"),
    (row(due=1000), ViewRuns(in_flight=True), "orders: a drain is in flight, 1000 or more due"),
    (replace(row(due=1500), retries=1000), ViewRuns(in_flight=True), "1500 or more due"),
    (replace(row(due=1500), retries=700), ViewRuns(in_flight=True), "in flight, 1500 due"),
    # after failures in a row the wait doubles
    *(
        case
        for failures, wait in ((1, BACKOFF_S), (2, 2 * BACKOFF_S), (3, 4 * BACKOFF_S))
        for case in (
            (row(), ViewRuns(last_ended=NOW - wait + 1, failures=failures), "failed in a row"),
            (row(), ViewRuns(last_ended=NOW - wait, failures=failures), None),
        )
    ),
)


def test_whether_a_view_is_drained_now_is_decided_by_its_row_and_its_runs() -> None:
    for view, runs, why_not in DECIDED:
        (poll,) = plan_polls([view], {view.view: runs} if runs else {}, NOW)
        assert poll.start is (Start.ALONE if why_not is None else None), (view, runs)
        assert (why_not or "") in poll.reason, (view, runs)
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
LEFT = {"orders": "a bad value"}
OWN = ViewRuns(in_flight=True, started=NOW - 3)
DIED = ViewRuns(in_flight=True, started=OLD)
ALONE, TOGETHER = Start.ALONE, Start.TOGETHER
# given its row, the shared run, its own runs and a reason for a run of its own: who drains a view now, and what is said
SHARED: tuple[tuple[ViewPoll, SharedRun, ViewRuns, str | None, Start | None, str], ...] = (
    (row(), SharedRun(), ViewRuns(), None, TOGETHER, "orders: 5 due"),
    (row(consumers=1), JOINED, ViewRuns(), None, None, "orders: drained together with other views, 5 due"),
    # one that starts is waited for, one that died is replaced
    (row(), SharedRun(ViewRuns(in_flight=True), starting=True), ViewRuns(), None, None, "a drain of all views starts, 5 due"),
    (row(), replace(JOINED, lives=False), ViewRuns(), None, TOGETHER, "orders: 5 due"),
    # those that it does not consume
    (row(), replace(JOINED, left=LEFT), ViewRuns(), None, ALONE, "by itself: the drain of all views left it: a bad value"),
    (row(), JOINED, ViewRuns(), None, ALONE, "by itself: the drain of all views does not consume it"),
    (row(), JOINED, ViewRuns(last_ended=NOW - 1, failures=3), None, None, "3 drains failed in a row"),
    # also where the shared run began just now
    (row(), SharedRun(ViewRuns(in_flight=True), starting=True, left=LEFT, since=NOW), ViewRuns(), None, ALONE, "left it"),
    # failures in a row back off
    (row(), SharedRun(ViewRuns(last_ended=NOW - 1, failures=2)), ViewRuns(), None, None, "2 drains failed in a row"),
    # a reason for a run of its own, beside the shared one; its own run in flight is enough, unless it died
    (row(consumers=1), JOINED, ViewRuns(), "it is far behind", ALONE, "orders: 5 due, by itself: it is far behind"),
    (row(), JOINED, OWN, "it is far behind", None, "orders: a drain is in flight, 5 due"),
    (row(), SharedRun(), OWN, None, None, "orders: a drain is in flight, 5 due"),
    (row(), SharedRun(), DIED, None, TOGETHER, "orders: 5 due"),
    # one that rests asks for nothing
    (row(due=0), SharedRun(), ViewRuns(), None, None, "orders: nothing is due"),
    (row(enabled=False), SharedRun(), ViewRuns(), "it is far behind", None, "orders: the view is disabled"),
)  # fmt: skip


def together(poll_row: ViewPoll, shared: SharedRun, own: ViewRuns | None = None) -> Poll:
    return plan_together(poll_row, own or ViewRuns(), shared, None, NOW)


def test_whether_a_view_is_drained_with_others_is_decided_by_the_shared_run_and_its_own() -> None:
    for view, shared, own, alone, start, said in SHARED:
        poll = plan_together(view, own, shared, alone, NOW)
        assert (poll.view, poll.start) == ("orders", start), (view, shared, own, alone)
        assert said in poll.reason, (said, poll.reason)


def test_a_view_that_left_the_last_shared_run_gets_its_own_until_one_of_these_ends_well() -> None:
    # the shared one had no other view, so it is attached to none, or has ended
    for runs in (JOINED.runs, ViewRuns(last_ended=NOW - 100)):
        left = SharedRun(runs, lives=False, left=LEFT, since=NOW - 200)
        assert together(row(), left).start is ALONE
        assert together(row(view="other"), left).start is TOGETHER
        ended_before = ViewRuns(last_ended=NOW - 201)
        assert together(row(), left, ended_before).start is ALONE
        failed_since = ViewRuns(last_ended=NOW - 100, failures=1)
        assert together(row(), left, failed_since).start is ALONE
        mended = ViewRuns(last_ended=NOW - 100)
        assert together(row(), left, mended).start is TOGETHER


def test_shared_runs_that_fail_again_and_again_make_each_view_try_by_itself() -> None:
    for failures in (3, 8):
        failing = SharedRun(ViewRuns(last_ended=NOW - SHARED_REST_S + 1, failures=failures))
        assert together(row(), failing) == Poll(
            "orders", ALONE, f"orders: 5 due, by itself: {failures} drains of all views failed in a row"
        )
        # after some minutes one is tried, which the others wait for
        rested = replace(failing, runs=replace(failing.runs, last_ended=NOW - SHARED_REST_S))
        assert together(row(), rested) == Poll("orders", TOGETHER, "orders: 5 due")
        tried = replace(rested, starting=True, runs=replace(rested.runs, in_flight=True))
        assert together(row(), tried).reason == "orders: a drain of all views starts, 5 due"
