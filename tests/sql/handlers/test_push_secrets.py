"""Secrets that sign a view's pushes: the current one, and the previous one for a while; shown nowhere else."""

from functools import partial

import pytest

from millrace.errors import Malformed
from millrace.event_store.platform import PlatformStore
from millrace.handlers.store import PushStore
from millrace.signing import made_secret
from tests.support.factories import Connect, at_once, refusal, rows, set_clock

FIRST, SECOND, THIRD = made_secret(), made_secret(), made_secret()


@pytest.fixture
def pushes(store: PlatformStore) -> PushStore:
    store.register_view("hook", "-infinity")
    set_clock(store.connection, "2030-01-01 00:00:00+00")
    return PushStore(store.connection)


def test_the_one_before_signs_too_until_its_time_is_over(pushes: PushStore) -> None:
    assert pushes.push_secrets("hook") == []
    pushes.set_push_secret("hook", FIRST)
    assert pushes.push_secrets("hook") == [FIRST]
    pushes.set_push_secret("hook", SECOND, 60, "yearly")
    assert pushes.push_secrets("hook") == [SECOND, FIRST]
    set_clock(pushes.connection, "2030-01-01 00:01:00+00")
    assert pushes.push_secrets("hook") == [SECOND]


def test_there_are_two_at_most_and_a_lost_one_is_gone_at_once(pushes: PushStore) -> None:
    for secret in (FIRST, SECOND, THIRD):
        pushes.set_push_secret("hook", secret)
    assert pushes.push_secrets("hook") == [THIRD, SECOND]
    # setting the current one again changes nothing
    pushes.set_push_secret("hook", THIRD, 0)
    assert pushes.push_secrets("hook") == [THIRD, SECOND]
    pushes.set_push_secret("hook", SECOND)
    assert pushes.push_secrets("hook") == [SECOND, THIRD]
    pushes.set_push_secret("hook", FIRST, 0)
    assert pushes.push_secrets("hook") == [FIRST]


def test_each_change_is_audited_without_the_secret(store: PlatformStore, pushes: PushStore) -> None:
    pushes.set_push_secret("hook", FIRST, reason="new receiver")
    pushes.drop_push_secret("hook", "no receiver")
    pushes.drop_push_secret("hook")
    assert pushes.push_secrets("hook") == []
    entries = [entry for entry in store.audit_log("hook") if "secret" in entry.operation]
    done = [(entry.operation, entry.reason) for entry in entries]
    assert done == [("drop_push_secret", "no receiver"), ("set_push_secret", "new receiver")]
    assert FIRST not in str(entries)
    # they go with their view
    pushes.set_push_secret("hook", FIRST)
    store.unregister_view("hook")
    assert rows(store.connection, "select from event_store.push_secrets") == []


def test_no_secret_and_a_time_out_of_range_are_refused_unquoted(pushes: PushStore) -> None:
    for secret in ("", "secret", "whsec_", "whsec_" + "a" * 31, "whsec_" + "a" * 32 + " ", "sec_" + "a" * 32):
        refused = refusal(Malformed, partial(pushes.set_push_secret, "hook", secret))
        assert refused.detail == "v_secret is no secret of Standard Webhooks"
    for keep_s in (-1, 31_536_001):
        refusal(Malformed, partial(pushes.set_push_secret, "hook", FIRST, keep_s))


def test_of_two_that_rotate_at_once_one_is_the_current_and_one_the_former(pushes: PushStore, connect: Connect) -> None:
    pushes.set_push_secret("hook", FIRST)
    works = [partial(PushStore(connect()).set_push_secret, "hook", secret) for secret in (SECOND, THIRD)]
    for done in at_once(works):
        done.result()
    assert set(PushStore(connect()).push_secrets("hook")) == {SECOND, THIRD}
