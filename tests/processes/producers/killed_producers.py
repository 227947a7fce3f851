"""A program that kills producers at random: `python -m tests.processes.producers.killed_producers DSN KILLS SEED`.

It forks workers that send the same source, one at a time or several at once, and kills them: the process, or its
session. After KILLS kills a last worker sends a few more messages and ends. `test_exactly_once_kills` asserts the
result. This is a separate program because pytest has threads, which a fork does not survive.
"""

import json
import os
import signal
import sys
import time
from random import Random
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from millrace.errors import ProducerFenced, SequenceGap, TransactionEnded
from millrace.producers import IdempotentProducer, ProducerStore, RegisteredProducer
from millrace.producers.exactly_once import ExactlyOnce, Transaction, Work
from tests.support.forks import fork
from tests.support.patience import wait_until
from tests.support.sql_calls import BatchEvent

SOURCE = "orders.csv"
STREAMS = 7
LOST = 3  # the exit status of a worker that lost its session at a point without a retry


class WorkFailed(Exception):
    """An occasional failure of the worker itself."""


def payments(number: int) -> list[tuple[str, int]]:
    random = Random(number)
    return [(f"s-{random.randrange(STREAMS)}", random.randrange(100)) for _ in range(random.randrange(4))]


def work(number: int, *, prefix: str = "", fails: bool = False) -> Work:
    """Make a message's work: append an event for each payment; return running totals and the place in the source."""

    def do(transaction: Transaction) -> dict[str, int]:
        paid = payments(number)
        events = [
            BatchEvent("order", f"{prefix}{to}", "paid", uuid4(), {"amount": n, "number": number}, uuid4())
            for to, n in paid
        ]
        transaction.append_all([each.alone for each in events[:1]])
        total = (transaction.state("total") or 0) + sum(amount for _, amount in paid)
        transaction.set_state("total", total)
        if fails:
            raise WorkFailed
        for to in sorted({to for to, _ in paid}):
            before = transaction.state(to) or 0
            transaction.set_state(to, before + sum(amount for other, amount in paid if other == to))
        transaction.set_state("position", number)
        transaction.append_all([each.alone for each in events[1:]])
        return {"number": number, "total": total}

    return do


def send(exactly_once: ExactlyOnce, producer: IdempotentProducer, end: int, random: Random) -> None:
    stamp = producer.issue()
    while stamp.sequence < end:
        try:
            exactly_once.process(stamp, work(stamp.sequence, fails=random.random() < 0.05), timeout_s=1)
        except SequenceGap as gap:
            stamp = producer.reissue(gap.expected)
        except (WorkFailed, TransactionEnded):
            stamp = producer.reissue(stamp.sequence)
        else:
            stamp = producer.reissue(stamp.sequence + 1)


def fork_worker(dsn: str, racing: RegisteredProducer | None, seed: int) -> int:
    def work() -> int:
        try:
            with ExactlyOnce(make_conninfo(dsn, application_name=f"victim-{os.getpid()}")) as exactly_once:
                producer = IdempotentProducer(racing) if racing else exactly_once.register(SOURCE)
                send(exactly_once, producer, 10**9, Random(seed))
        except ProducerFenced:
            return 0
        except psycopg.OperationalError:
            return LOST
        return 1

    return fork(work)


def reap(children: set[int], *, block: bool = False) -> None:
    for child in tuple(children):
        pid, status = os.waitpid(child, 0 if block else os.WNOHANG)
        if pid:
            children.remove(child)
            code = os.waitstatus_to_exitcode(status)
            assert code in {0, LOST, -signal.SIGKILL}, code


def kill(store: ProducerStore, child: int, random: Random) -> int:
    """Kill a worker's session or the worker; return 1 if there was something to kill."""
    if random.random() < 0.4:
        ended = store.connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s", (f"victim-{child}",)
        ).fetchall()
        return int(any(each for (each,) in ended))
    os.kill(child, signal.SIGKILL)
    return 1


def main(dsn: str, kills: int, seed: int) -> dict[str, int]:
    """Kill `kills` workers and sessions; return the numbers of messages and of other outcomes."""
    random = Random(seed)
    done = raced = 0
    children: set[int] = set()
    with psycopg.connect(dsn, autocommit=True) as connection:
        store = ProducerStore(connection)
        store.register_producer(SOURCE)
        while done < kills:
            if len(children) < 2 or random.random() < 0.2:
                racing = store.register_producer(SOURCE) if random.random() < 0.5 else None
                raced += racing is not None
                for _ in range(3 if racing else 1):
                    children.add(fork_worker(dsn, racing, random.randrange(10**9)))
            # a random moment for the kill; nothing else depends on this sleep
            time.sleep(random.uniform(0.0, 0.1))
            reap(children)
            if children:
                done += kill(store, random.choice(sorted(children)), random)
            if random.random() < 0.2:
                store.expire_transactions(60)
        for child in children:
            os.kill(child, signal.SIGKILL)
        reap(children, block=True)
        victims = "select from pg_stat_activity where application_name like 'victim-%'"
        wait_until(lambda: not connection.execute(victims).fetchall(), "no session of a victim is left")
        with ExactlyOnce(dsn) as exactly_once:
            producer = exactly_once.register(SOURCE)
            end = producer.current_sequence + 20
            send(exactly_once, producer, end, random)
    return {"kills": done, "raced": raced, "messages": end}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))  # noqa: T201 - its result
