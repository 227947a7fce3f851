"""Messages of one read of the slot: in batches, and in pieces that end at the end of a transaction."""

from collections.abc import Sequence

import pytest

from millrace.capture.declaration import CapturedTable
from millrace.capture.decoding.arriving import BATCH, BATCH_BYTES, Arriving
from millrace.capture.decoding.change import Change
from millrace.capture.decoding.changes import ChangeDecoder
from tests.support.capturing.decoded_changes import T
from tests.support.capturing.pgoutput_bytes import COMMITTED_AT, begin, commit, encode, insert


class Watched(ChangeDecoder):
    def __init__(self) -> None:
        super().__init__([CapturedTable("t", key=("id",))], "c", 3, 900)
        self.fed: list[int] = []

    def feed_all(self, messages: Sequence[bytes]) -> list[Change]:
        self.fed.append(len(messages))
        return super().feed_all(messages)


def transaction(lsn: int, *keys: int, text: bytes = b"a") -> list[bytes]:
    """Return the messages of a transaction that inserts a row per key: three messages beside the inserts."""
    rows = [insert(str(key).encode(), text) for key in keys]
    return [begin(lsn), encode(T), *rows, commit(lsn)]


def ids(changes: Sequence[Change]) -> list[str | None]:
    return [change.decider_id for change in changes]


def test_a_piece_ends_with_the_transaction_that_fills_it() -> None:
    messages = [*transaction(100, 1), *transaction(200, 2, 3), *transaction(300, 4), *transaction(400, 5)]
    arriving = Arriving(Watched(), messages)
    assert ids(list(arriving.piece(5))) == ["[1]", "[2]", "[3]"]
    assert (arriving.messages, arriving.changed, arriving.end_lsn, arriving.ended) == (9, 3, 208, False)
    assert arriving.committed_at == COMMITTED_AT
    assert ids(list(arriving.piece(4))) == ["[4]"]
    assert (arriving.messages, arriving.end_lsn, arriving.ended) == (13, 308, False)
    assert ids(list(arriving.piece(100))) == ["[5]"]
    assert (arriving.messages, arriving.changed, arriving.end_lsn, arriving.ended) == (17, 5, 408, True)


def test_a_piece_that_ends_where_all_does_is_followed_by_an_empty_one() -> None:
    arriving = Arriving(Watched(), transaction(100, 1))
    assert ids(list(arriving.piece(1))) == ["[1]"]
    assert not arriving.ended
    assert list(arriving.piece(1)) == []
    assert (arriving.ended, arriving.messages, arriving.end_lsn) == (True, 4, 108)


def test_where_nothing_comes_nothing_is_left() -> None:
    arriving = Arriving(Watched(), ())
    assert list(arriving.piece(1)) == []
    assert (arriving.ended, arriving.messages, arriving.end_lsn, arriving.committed_at) == (True, 0, None, None)


@pytest.mark.parametrize("least", [1, 2 * BATCH, 10 * BATCH])
def test_messages_are_decoded_together_and_a_transaction_is_in_one_piece(least: int) -> None:
    decoder = Watched()
    number = 2 * BATCH + 1
    arriving = Arriving(decoder, transaction(100, *range(number)))
    assert len(list(arriving.piece(least))) == number
    assert decoder.fed[:3] == [BATCH, BATCH, 4]


def test_fewer_large_messages_are_decoded_together() -> None:
    decoder = Watched()
    large = b"x" * (BATCH_BYTES // 2)
    assert len(list(Arriving(decoder, transaction(100, 1, 2, 3, 4, 5, text=large)).piece())) == 5
    assert decoder.fed == [4, 2, 2]
