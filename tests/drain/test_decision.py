"""Whether a view is drained now, and by which run: decided from known facts, without a database."""

from dataclasses import replace

from millrace.drain import decision
from millrace.drain.decision import JOIN_S, Start, alone_behind, in_turn, plan
from millrace.event_store import DrainState, ViewPoll
from millrace.patience import REST_S

ORDERS = ViewPoll("orders", "bulk", enabled=True, pooling_delay_s=1, edge_function_url=None, due=5, consumers=0)
PUSHED = replace(ORDERS, view="mails", mode="rows", pooling_delay_s=None, edge_function_url="http://x/", due=1)
CONSUMED = replace(ORDERS, consumers=1)
RETRIED = replace(ORDERS, retries=2)
IDLE, BUSY = DrainState("orders"), DrainState("orders", "a run", since_s=3.0)
ALONE, TOGETHER = Start.ALONE, Start.TOGETHER
# a view that is drained by itself, the state of its drain, and why no run starts (None: a run starts)
DECIDED: tuple[tuple[ViewPoll, DrainState, str | None], ...] = (
    (ORDERS, IDLE, None),
    (replace(ORDERS, due=0), IDLE, "orders: nothing is due"),
    (replace(ORDERS, enabled=False), IDLE, "orders: the view is disabled"),
    (replace(ORDERS, pooling_delay_s=None), IDLE, "its client polls by itself"),
    # a view with a URL is pushed to, even without a delay
    (PUSHED, IDLE, None),
    (ORDERS, BUSY, "orders: a drain is in flight, 5 due"),
    (CONSUMED, BUSY, "orders: a drain is in flight, 5 due"),
    # the delay is kept between drains
    (replace(ORDERS, pooling_delay_s=60), replace(IDLE, ended_s=59.0), "pooling_delay_s of 60"),
    (replace(ORDERS, pooling_delay_s=60), replace(IDLE, ended_s=60.0), None),
    # a count at the store's limit is shown as "or more"
    (replace(ORDERS, due=999), BUSY, "orders: a drain is in flight, 999 due"),
    (replace(ORDERS, due=1000), BUSY, "orders: a drain is in flight, 1000 or more due"),
    (replace(ORDERS, due=1500, retries=1000), BUSY, "1500 or more due"),
    (replace(ORDERS, due=1500, retries=700), BUSY, "in flight, 1500 due"),
    # after failures the store states the backoff
    (
        ORDERS,
        replace(IDLE, failures=2, error="a bad value", wait_s=4.2, ended_s=6.0),
        "orders: 2 drains failed in a row; the next one starts in 4 s: a bad value",
    ),
    (ORDERS, replace(IDLE, failures=2, error="a bad value", ended_s=11.0), None),
)


def test_whether_a_view_is_drained_now_is_decided_by_its_row_and_its_drain() -> None:
    for row, own, why_not in DECIDED:
        poll = plan(row, own)
        assert (poll.view, poll.start) == (row.view, ALONE if why_not is None else None), (row, own)
        assert (why_not or "") in poll.reason, (row, own)


def test_views_take_turns_behind_the_one_that_was_last() -> None:
    assert in_turn(["c", "a", "b"], None, 2) == ["a", "b"]
    assert in_turn(["c", "a", "b"], "b", 2) == ["c", "a"]
    assert in_turn(["c", "a", "b"], "c", 9) == ["a", "b", "c"]
    assert in_turn(["c", "a", "b"], "gone", 9) == ["a", "b", "c"]
    assert in_turn(["a"], None, 0) == in_turn(["a"], None, -3) == in_turn([], None, 3) == []


NONE = DrainState("")
ASKED = DrainState("", since_s=3.0)
BEGAN = DrainState("", "a run", since_s=JOIN_S - 1, lives=True)
JOINED = replace(BEGAN, since_s=JOIN_S)
FAILED = DrainState("orders", failures=1, error="a bad value", ended_s=9.0)
WAITS = replace(FAILED, failures=3, wait_s=4.0)
FAILING = DrainState("", failures=decision.SHARED_FAILURES, ended_s=REST_S - 1)
# the view's row, the state of its own drain and of the shared drain, which drain starts, and the reason
SHARED: tuple[tuple[ViewPoll, DrainState, DrainState, Start | None, str], ...] = (
    (ORDERS, IDLE, NONE, TOGETHER, "orders: 5 due"),
    (CONSUMED, IDLE, JOINED, None, "orders: drained together with other views, 5 due"),
    # a shared drain that is starting or joining its views: wait for it
    (ORDERS, IDLE, ASKED, None, "orders: a drain of all views starts, 5 due"),
    (ORDERS, IDLE, BEGAN, None, "orders: a drain of all views starts, 5 due"),
    # views that the shared drain does not consume
    (ORDERS, IDLE, JOINED, ALONE, "orders: 5 due, by itself: the drain of all views does not consume it"),
    # views that left the shared drain, even if it has just begun or has ended, until a try succeeds
    *((ORDERS, FAILED, shared, ALONE, "by itself: the last try ended with: a bad value") for shared in (NONE, BEGAN, JOINED)),
    (ORDERS, WAITS, JOINED, None, "3 drains failed in a row"),
    # a view that the shared drain consumes again needs no run of its own
    (CONSUMED, FAILED, JOINED, None, "drained together"),
    # failures of the shared run back off
    (ORDERS, IDLE, DrainState("", failures=2, wait_s=4.0, ended_s=6.0), None, "2 drains failed in a row"),
    # after some failures in a row each view tries by itself; after some minutes a shared run is tried again
    (ORDERS, IDLE, FAILING, ALONE, "by itself: 3 drains of all views failed in a row"),
    (ORDERS, IDLE, replace(FAILING, ended_s=REST_S), TOGETHER, "orders: 5 due"),
    (ORDERS, IDLE, replace(FAILING, ended_s=REST_S, since_s=3.0), None, "a drain of all views starts"),
    # rounds leave retries to the view's own run, and one such run is enough
    (replace(RETRIED, consumers=1), IDLE, JOINED, ALONE, "orders: 5 due, by itself: 2 streams are tried again"),
    (RETRIED, BUSY, JOINED, None, "orders: a drain is in flight, 5 due"),
    (ORDERS, BUSY, NONE, None, "orders: a drain is in flight, 5 due"),
    # an idle or disabled view needs no run
    (replace(ORDERS, due=0), FAILED, NONE, None, "orders: nothing is due"),
    (replace(RETRIED, enabled=False), IDLE, NONE, None, "orders: the view is disabled"),
)  # fmt: skip


def test_the_shared_drain_and_its_own_decide_who_drains_a_view() -> None:
    for row, own, shared, start, said in SHARED:
        poll = plan(row, own, shared)
        assert (poll.view, poll.start) == ("orders", start), (row, own, shared)
        assert said in poll.reason, (said, poll.reason)


def test_a_view_far_behind_gets_its_own_drain_unless_it_is_served() -> None:
    near = replace(ORDERS, view="near", ahead=decision.LARGE_BACKLOG)
    far = replace(ORDERS, ahead=decision.LARGE_BACKLOG + 1)
    assert alone_behind([near, far]) == "orders"
    assert alone_behind([near, far, replace(far, view="as far")]) is None
    assert alone_behind([near]) is None
    for shared in (NONE, ASKED, BEGAN, JOINED):
        poll = plan(far, IDLE, shared, is_far=True)
        assert (poll.start, poll.reason) == (ALONE, "orders: 5 due, by itself: it alone is 100001 positions behind")
    assert "drained together" in plan(replace(far, consumers=1), IDLE, JOINED, is_far=True).reason
