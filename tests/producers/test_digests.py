"""A number names one message: other content under it is refused if senders state digests."""

from hashlib import sha256

from millrace.errors import MessageDiffers
from millrace.producers.exactly_once import ExactlyOnce
from tests.support.factories import Connect, refusal, rows
from tests.support.producing.counting import Counting, total

FIRST, OTHER = sha256(b"first").digest(), sha256(b"other").digest()


def test_a_message_that_comes_again_is_known_by_its_digest(once: ExactlyOnce, work: Counting) -> None:
    stamp = once.register("p").issue()
    answers = [once.process(stamp, work, digest=FIRST) for _ in range(2)]
    assert [answer.duplicate for answer in answers] == [False, True]
    refused = refusal(MessageDiffers, lambda: once.process(stamp, work, digest=OTHER))
    assert refused.detail == "producer 'p', partition 0: message 0 came before with another digest"
    assert (work.runs, total(once)) == (1, 1)
    (found,) = once.store.producer_statistics()
    assert (found.received, found.duplicates) == (2, 1)


def test_so_it_is_in_one_call_and_who_sends_no_digest_is_not_asked(once: ExactlyOnce) -> None:
    once.register("p")
    answers = [once.store.ingest_events("p", 0, 1, 0, digest=digest).status for digest in (FIRST, FIRST, None)]
    assert answers == ["committed", "duplicate", "duplicate"]
    refusal(MessageDiffers, lambda: once.store.ingest_events("p", 0, 1, 0, digest=OTHER))
    answers = [once.store.ingest_events("p", 0, 1, 1, digest=digest).status for digest in (None, FIRST)]
    assert answers == ["committed", "duplicate"]


def test_of_two_of_one_number_that_of_another_digest_is_refused(once: ExactlyOnce) -> None:
    once.register("p")
    ids = [once.store.begin_transaction("p", 0, 1, 0, digest=digest).transaction_id for digest in (FIRST, OTHER, FIRST)]
    assert None not in ids
    first, other, again = (id_ for id_ in ids if id_ is not None)
    assert not once.store.commit_transaction(first).duplicate
    assert once.store.commit_transaction(again).duplicate
    refusal(MessageDiffers, lambda: once.store.commit_transaction(other))


def test_an_abandoned_message_keeps_its_digest(once: ExactlyOnce, connect: Connect) -> None:
    once.register("p")
    opened = once.store.begin_transaction("p", 0, 1, 0, digest=FIRST).transaction_id
    assert opened is not None
    once.store.abandon_transaction(opened, "unreadable")
    assert rows(connect(), "select outcome, digest from event_store.producer_results") == [("abandoned", FIRST)]
