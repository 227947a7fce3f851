"""Subscriptions in tests: each event that a store holds is handled once."""

import threading
from dataclasses import replace

from millrace.event_store import DeadLetter
from millrace.event_store.platform import PlatformStore
from millrace.handlers.consumer import Consumer
from millrace.handlers.declaration import Subscription
from millrace.handlers.log_lines import Counters
from millrace.personal.sealer import Sealer
from millrace.postgres.connecting import connect


def consumed(dsn: str, subscription: Subscription, sealer: Sealer | None = None) -> tuple[Counters, list[DeadLetter]]:
    """Handle a subscription's events in the store, from the first one on; return the counters and the dead letters.

    An event fails for good if its handler raises, and waits if its handler wants it later: other streams continue.
    """
    stop, faults = threading.Event(), list[BaseException]()
    consumer = Consumer(dsn, replace(subscription, start="-infinity", max_attempts=1), sealer=sealer)
    with connect(dsn) as connection:
        store = PlatformStore(connection)
        store.sequence_events()
        consumer.register()

        def run() -> None:
            try:
                consumer.run(stop)
            except BaseException as error:  # noqa: BLE001 - raised below
                faults.append(error)

        running = threading.Thread(target=run, name=f"trial of {subscription.view}", daemon=True)
        running.start()
        while running.is_alive() and consumer.idle_since is None:
            running.join(0.005)
        stop.set()
        running.join()
        if faults:
            raise faults[0]
        return consumer.counters, store.dead_letters(subscription.view)
