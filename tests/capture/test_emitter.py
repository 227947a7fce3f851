"""The emitting thread beside the storing one: which of them waits for the other, and how an error surfaces."""

import threading

import pytest

from millrace.capture.emitter import MOST_PIECES, Emitter
from tests.support.factories import start
from tests.support.patience import patience


class Emissions:
    """Emissions that wait until they are released."""

    def __init__(self) -> None:
        self.let_go = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.ended = 0
        self.error: BaseException | None = None

    def __call__(self) -> None:
        self.begun.release()
        self.let_go.acquire(timeout=patience())
        if self.error is not None:
            raise self.error
        self.ended += 1


def test_all_that_was_handed_over_is_emitted_before_it_ends() -> None:
    emit = Emissions()
    emit.let_go.release(3)
    with Emitter(emit, lambda: None, 60) as emitter:
        for _ in range(3):
            emitter.hand_over()
    assert emit.ended == 3


def test_it_waits_until_all_is_emitted_for_as_long_as_is_said() -> None:
    emit = Emissions()
    with Emitter(emit, lambda: None, 60) as emitter:
        assert emitter.wait(0)
        emitter.hand_over()
        assert not emitter.wait(0)
        assert not emitter.wait(0.01)
        waiting = start(emitter.wait)
        emit.let_go.release()
        assert waiting.result(patience())
        assert emitter.wait(0)


def test_whoever_stores_waits_where_too_much_is_not_emitted_yet() -> None:
    emit = Emissions()
    with Emitter(emit, lambda: None, 60) as emitter:
        emitter.hand_over()
        assert emit.begun.acquire(timeout=patience())
        for _ in range(MOST_PIECES):
            emitter.hand_over()
        one_more = start(emitter.hand_over)
        with pytest.raises(TimeoutError):
            one_more.result(0.2)
        emit.let_go.release()
        one_more.result(patience())
        emit.let_go.release(MOST_PIECES + 1)
    assert emit.ended == MOST_PIECES + 2


def test_after_an_error_nothing_is_emitted_and_all_are_told() -> None:
    emit = Emissions()
    emit.error = ValueError("broken")
    emit.let_go.release(100)
    emitter = Emitter(emit, lambda: None, 60).__enter__()
    emitter.hand_over()
    with pytest.raises(ValueError, match="broken"):
        emitter.wait()
    emit.error = None
    for _ in range(2 * MOST_PIECES):
        with pytest.raises(ValueError, match="broken"):
            emitter.hand_over()
    with pytest.raises(ValueError, match="broken"):
        emitter.__exit__(None, None, None)
    assert emit.ended == 0


def test_an_error_of_the_storing_is_not_hidden_by_the_emission_s() -> None:
    emit = Emissions()
    emit.error = ValueError("broken")
    emit.let_go.release()
    emitter = Emitter(emit, lambda: None, 60).__enter__()
    emitter.hand_over()
    emitter.__exit__(KeyError, KeyError(), None)


def test_an_error_while_it_rests_is_raised_too() -> None:
    rested = threading.Semaphore(0)
    with Emitter(lambda: None, rested.release, 0.001):
        assert rested.acquire(timeout=patience())
        assert rested.acquire(timeout=patience())

    failed = threading.Semaphore(0)

    def failing() -> None:
        failed.release()
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"), Emitter(lambda: None, failing, 0.001):
        assert failed.acquire(timeout=patience())
