"""Events that kill the process that handles them: each is parked, and no other event is."""

import subprocess
import sys

from millrace.event_store.platform import PlatformStore
from tests.support.factories import register_orders
from tests.support.patience import patience, wait_until
from tests.support.views.consuming import fill, owed

CONSUMER = """
import os, sys, threading, time
from millrace import Delivery, subscription
from millrace.handlers.acknowledge import Answerer
from millrace.handlers.consumer import consume

@subscription(view="v", start="-infinity", max_attempts=2, concurrency=4)
def handle(event: Delivery) -> None:
    if event.decider_id == "s-3":
        os._exit(7)

given = Answerer._send
# a process dies before the answers that it had for other events are given
Answerer._send = lambda *answers: (time.sleep(0.1), given(*answers))

consume(sys.argv[1], [handle], stop=threading.Event())
"""


def test_an_event_that_kills_its_process_is_parked_and_no_stream_beside_it(store: PlatformStore, dsn: str) -> None:
    orders = register_orders(store)
    fill(orders, 30, 2)
    program = [sys.executable, "-c", CONSUMER, dsn]
    # the first kill does not show which event began; the next two do
    for _ in range(3):
        assert subprocess.run(program, timeout=patience(), check=False).returncode == 7
        # its locks expire; no living process holds any
        orders.connection.execute("update event_store.stream_locks set locked_until = event_store_private.clock()")
    with subprocess.Popen(program) as last:
        try:
            wait_until(lambda: owed(orders, "v") == 2, "all other streams are handled")
            wait_until(lambda: orders.dead_letters("v") != [], "the event is parked")
        finally:
            last.kill()
    (letter,) = orders.dead_letters("v")
    assert (letter.decider_id, letter.attempts, letter.waiting) == ("s-3", 2, 2)
