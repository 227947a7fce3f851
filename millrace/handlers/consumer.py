"""Consuming: leases the events of subscriptions, and lets threads handle them.

A consumer has one thread that leases, one that answers, and one for each handler that may run at once. The store gives
one event of a stream at a time, which keeps the order. One case needs care: if a handler still runs after its stream's
lock has passed to another process, this consumer does not handle the stream's next event beside it.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from uuid import uuid4

from msgspec import structs

from millrace.errors import HandlersHang, InvalidSubscription, MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.handlers.acknowledge import Answerer
from millrace.handlers.declaration import Subscription
from millrace.handlers.deliveries import Deliveries, Held
from millrace.handlers.handling import Caller, Failed, GiveBack, LoopThread
from millrace.handlers.lasting_connection import LastingConnection
from millrace.handlers.log_lines import Counters, error_text, log_line
from millrace.handlers.wake_up_hub import WakeUpHub
from millrace.patience import ASK_S, BUSY_S, FAREWELL_S, GLANCE_S, LOOK_S, PATIENCE_S, PAUSE_S, POLL_S
from millrace.personal.sealer import Sealer
from millrace.postgres import connecting

# how long the waiting events keep the threads busy
AHEAD_S = 0.2
SHORTEST_PAUSE_S = 0.02
# each pause without news is longer than the one before by this factor
GROWTH = 2
# after the end is requested, the time for a handler's statement on a silent server: until it is abandoned, and then
# until it is canceled
STATEMENT_S = 2 * FAREWELL_S


def consume(
    dsn: str,
    subscriptions: Sequence[Subscription],
    *,
    stop: threading.Event,
    counters: dict[str, Counters] | None = None,
    sealer: Sealer | None = None,
) -> Mapping[str, Counters]:
    """Call the handlers of subscriptions for each event until `stop` is set; return what was done, by view.

    When `stop` is set, running handlers are waited for and answered, and events that they did not begin are given back.
    The loop outlasts restarts of the server, a silent server, and one that takes no writes for a while.

    Args:
        dsn: The event store.
        subscriptions: The subscriptions to consume.
        stop: Ends it.
        counters: Receives the counters of each view at the beginning, to be read during the run.
        sealer: Opens the personal values of events. Of the errors of a handler that got such a value, only class,
            SQLSTATE and line are kept.

    Raises:
        InvalidSubscription: Two of them have the same view.
        MillraceError: The store refuses: a view is another role's, for example; or too many handlers hang.
        psycopg.OperationalError: The server does not answer at the beginning.
    """
    views = [each.view for each in subscriptions]
    if twice := sorted({view for view in views if views.count(view) > 1}):
        raise InvalidSubscription(
            f"Two subscriptions have the view {twice[0]!r}.", hint="Each event of a view goes to one handler only."
        )
    if not subscriptions:
        raise InvalidSubscription("There is no subscription to consume.", hint="Declare one with @subscription(…).")
    wake_ups = WakeUpHub(dsn)
    consumers = [Consumer(dsn, each, wake_ups, sealer=sealer) for each in subscriptions]
    counters_by_view = {} if counters is None else counters
    counters_by_view.update({each.subscription.view: each.counters for each in consumers})
    for consumer in consumers:
        consumer.register()
    # a consumer that fails ends all: the caller starts them again together
    ending = threading.Event()
    faults: list[BaseException] = []

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            work(ending)
        except BaseException as error:  # noqa: BLE001 - raised below
            faults.append(error)
        finally:
            ending.set()

    threads = [
        threading.Thread(target=run, args=(each.run,), name=f"consume {each.subscription.view}") for each in consumers
    ]
    threads.append(threading.Thread(target=run, args=(wake_ups.listen,), name="wake-ups"))
    for thread in threads:
        thread.daemon = True
        thread.start()
    try:
        while not ending.is_set() and not stop.wait(GLANCE_S):
            pass
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    if faults:
        raise faults[0]
    return counters_by_view


class Consumer:
    """The consumer of one subscription.

    Attributes:
        subscription: Its subscription.
        counters: The counters of its work so far.
        idle_since: Since when it has no event, and found none; None while it has one.
    """

    def __init__(
        self,
        dsn: str,
        subscription: Subscription,
        wake_ups: WakeUpHub | None = None,
        name: str | None = None,
        *,
        sealer: Sealer | None = None,
        opens_text: bool = False,
    ) -> None:
        self.subscription = subscription
        self.counters = Counters()
        self.idle_since: float | None = None
        self._dsn, self._opens_text = dsn, opens_text
        # one of its own: it says whether this handler got a value, and only the thread that leases drops its keys
        self._sealer = sealer and Sealer(sealer.folder)
        self._deliveries = Deliveries(refill_at=subscription.concurrency)
        self._connection = LastingConnection(dsn, subscription.view, self.counters, self._sealer)
        self._answer_connection = LastingConnection(dsn, subscription.view, self.counters)
        self._answerer = Answerer(subscription, self._deliveries, self._answer_connection, self.counters, self._hung)
        self._loop: LoopThread | None = None
        self._workers: dict[threading.Thread, Caller] = {}
        self._name = name or f"consume {uuid4()}"
        self._pause_s = SHORTEST_PAUSE_S
        # back off from wake-ups that brought no event
        self._wake_up, self._woken, self._backoff_s = False, False, 0.0
        self._attended = False
        self._wake_ups = wake_ups
        if wake_ups is not None:
            wake_ups.subscribe(self._wake)
        self._draining = False
        self._over_at = math.inf
        # ends handlers' statements that get no answer
        self._leaving = threading.Event()
        self._fault: BaseException | None = None

    def register(self) -> None:
        """Register the view with the settings that the subscription declares, or log why they do not count."""
        declared = self.subscription
        with connecting.connect(self._dsn, answer_s=connecting.ANSWER_S) as connection:
            store = PlatformStore(connection)
            declared.prepare(store)
            view = store.register_view(
                declared.view,
                declared.start,
                declared.lock_timeout_s,
                deciders=declared.deciders,
                events=declared.events,
                max_attempts=declared.max_attempts,
                version=declared.version,
            )
        if view.version > declared.version:
            log_line(
                logging.WARNING,
                "settings of a newer version stay",
                view=declared.view,
                version=view.version,
                this_version=declared.version,
            )
        log_line(
            logging.INFO,
            "consuming",
            view=declared.view,
            handler=declared.name,
            concurrency=declared.concurrency,
            version=declared.version,
            enabled=view.enabled,
        )

    def run(self, stop: threading.Event) -> None:
        """Lease and handle events until `stop` is set, then drain.

        Raises:
            MillraceError: The store refuses, or too many handlers hang.
        """
        with ExitStack() as stack:
            stack.callback(self._log_end)
            if self.subscription.is_async:
                self._loop = LoopThread(f"{self.subscription.view} loop", self._sealer)
                stack.callback(self._loop.close)
            stack.callback(self._connection.close)
            stack.callback(self._detach)
            stack.callback(self._answer_connection.close)
            answering = threading.Thread(target=self._answer, name=f"{self.subscription.view} answers", daemon=True)
            answering.start()
            for _ in range(self.subscription.concurrency):
                self._begin_worker()
            # a call that waits for the server also ends with the consumer
            threading.Thread(target=self._hang_up, args=(stop,), daemon=True).start()
            try:
                self._lease_until(stop)
            except connecting.PASSING:
                if not stop.is_set() and self._fault is None:
                    raise
            finally:
                self._drain(answering)
        if self._fault is not None:
            raise self._fault

    def wait_for_more(self, stop: threading.Event) -> None:
        """Wait if there is nothing to lease: until an answer frees a stream, a wake-up comes, or a growing time ends.

        The only place that polls.
        """
        if stop.is_set():
            return
        freed = self._deliveries.room.wait(self._pause_s)
        self._deliveries.room.clear()
        woken_up, self._wake_up = self._wake_up, False
        self._woken = freed or woken_up
        if woken_up and self.counters.held == 0:
            # the wake-up may be for events that this view does not want
            stop.wait(self._backoff_s)
            self._backoff_s = min(max(2 * self._backoff_s, SHORTEST_PAUSE_S), LOOK_S)
        elif not freed:
            self._backoff_s = 0.0
        arriving = self._attended and self._wake_ups is not None and self._wake_ups.arriving
        # the retry of an event may be late by this much
        longest = ASK_S if arriving else LOOK_S
        self._pause_s = SHORTEST_PAUSE_S if freed else min(GROWTH * self._pause_s, longest)

    def _wake(self) -> None:
        self._wake_up = True
        self._deliveries.room.set()

    def _lease_until(self, stop: threading.Event) -> None:
        attach_at, adapted_at, begun_before = 0.0, time.monotonic(), 0
        ahead = least = 2 * self.subscription.concurrency
        while not stop.is_set() and self._fault is None:
            if time.monotonic() >= attach_at:
                self._connection(lambda store: store.attach_consumer(self.subscription.view, self._name))
                # a consumer without a sign of life for 15 minutes counts as dead
                attach_at = time.monotonic() + PATIENCE_S
            held, now = len(self._deliveries.ready), time.monotonic()
            if (seconds := now - adapted_at) >= GLANCE_S:
                # hold as many events as threads begin in a fifth of a second: few slow ones,
                # many fast ones; more locks would only keep events from other consumers
                begun = self.counters.leased - held
                ahead = max(least, min(int((begun - begun_before) / seconds * AHEAD_S), 2000))
                self._deliveries.refill_at = ahead // 2
                adapted_at, begun_before = now, begun
            if held > self._deliveries.refill_at or (self._deliveries.stuck and self._deliveries.running):
                self._deliveries.room.wait(POLL_S)
                self._deliveries.room.clear()
                continue
            free, room = self.counters.held == 0, ahead - held
            leased = self._lease(room)
            if leased:
                self._pause_s, self._backoff_s, self.idle_since = SHORTEST_PAUSE_S, 0.0, None
            if leased < room and self._connection(self._hand_over) == 0 and not leased:
                self.idle_since = (self.idle_since or time.monotonic()) if free else None
                self.wait_for_more(stop)

    def _hand_over(self, store: PlatformStore) -> int:
        """Hand over the events that leasing left; return how many positions were passed."""
        self._attended = store.is_attended()
        if self._attended and self.idle_since is not None and not self._woken:
            # the sequencer has looked since
            return 0
        # also beside a sequencer: one that does not know the view yet announces events without handing them over, and
        # it hands over events that there was no room for only once a second
        return store.dispatch_events(self.subscription.view)

    def _lease(self, room: int) -> int:
        """Lease events, and queue them for threads or answer at once; return how many came."""
        subscription, answer = self.subscription, self._deliveries.answer
        events = self._connection(
            lambda store: store.lease_events(
                subscription.view, room, subscription.lock_timeout_s, ahead=True, upcast=subscription.upcast
            )
        )
        if self._sealer is not None and self._opens_text:
            # now: the next lease may drop the keys
            text = self._sealer.opened_text
            events = [structs.replace(event, data_json=text(event.data_json)) for event in events]
        now = time.monotonic()
        self.counters.leased += len(events)
        busy = self._deliveries.busy_streams() if events else set()
        for event in events:
            held = Held(event, now)
            if not subscription.wants(event.decider, event.event):
                answer(held, GiveBack("A newer version of the view's consumer wants this event.", PAUSE_S))
            elif held.stream not in busy:
                self._deliveries.add(held)
            elif (former := self._deliveries.still_running.get(held.stream)) is not None and former.timed_out:
                thread = former.thread.name if former.thread else "?"
                where = f"in thread {thread} of process {self._name}"
                answer(held, Failed(f"The handler of delivery {former.event.attempt} still runs {where}."))
            else:
                answer(held, GiveBack("The handler of an earlier delivery still runs.", PAUSE_S))
        return len(events)

    def _begin_worker(self) -> None:
        loop = self._loop.loop if self._loop else None
        caller = Caller(self._dsn, self.subscription, loop, self._leaving, self._sealer)
        name = f"{self.subscription.view} handler {len(self._workers) + 1}"
        thread = threading.Thread(target=self._work, args=(caller,), name=name, daemon=True)
        self._workers[thread] = caller
        thread.start()

    def _work(self, caller: Caller) -> None:
        take, finish = self._deliveries.take, self._deliveries.finish
        try:
            while (held := take()) is not None:
                if not finish(held, caller.call(held.event)) and held.timed_out:
                    log_line(
                        logging.WARNING,
                        "handler returned late",
                        view=self.subscription.view,
                        decider_id=held.event.decider_id,
                        offset=held.event.offset,
                        thread=threading.current_thread().name,
                    )
                    return  # another thread is in its place
        finally:
            caller.close()

    def _hung(self, held: Held) -> None:
        """Replace a thread that does not return; a limited number of times."""
        assert held.thread is not None
        # in its own thread: it waits for the server
        threading.Thread(target=self._workers[held.thread].interrupt, daemon=True).start()
        hung = [each for each in list(self._deliveries.still_running.values()) if each.timed_out]
        if len(hung) > self.subscription.concurrency:
            self._fault = self._fault or HandlersHang(
                f"{len(hung)} handlers of view {self.subscription.view} do not return.",
                detail=f"{self.subscription.name} runs in {', '.join(each.thread.name for each in hung if each.thread)}.",
                hint="Give what the handler waits for a time limit. Start the consumer again: its threads end with it.",
            )
        elif not self._draining:
            self._begin_worker()

    def _answer(self) -> None:
        try:
            self._answerer.run()
        except BaseException as error:  # noqa: BLE001 - raised by run
            self._fault = self._fault or error

    def _hang_up(self, stop: threading.Event) -> None:
        while not stop.wait(PAUSE_S) and self._fault is None and not self._draining:
            pass
        self._over_at = time.monotonic()
        self._connection.give_up()
        time.sleep(STATEMENT_S)
        self._leaving.set()

    def _drain(self, answering: threading.Thread) -> None:
        """Give back events that no handler has begun, wait for running handlers, and give the last answers."""
        self._draining = True
        given_back = self._deliveries.give_back_ready(GiveBack(), time.monotonic())
        running = len(self._deliveries.running)
        log_line(logging.INFO, "draining", view=self.subscription.view, running=running, given_back=given_back)
        for _ in self._workers:
            self._deliveries.queue.put(None)
        began = time.monotonic()
        # hanging handlers are not waited for
        while any(
            thread.is_alive()
            and all(held.thread is not thread for held in list(self._deliveries.still_running.values()))
            for thread in list(self._workers)
        ):
            if self._fault is not None and time.monotonic() - began > BUSY_S:
                break
            time.sleep(GLANCE_S)
        self._answerer.finish()
        # meanwhile answers are sent again if the server is away
        answering.join(max(min(self._over_at, began) + ASK_S - time.monotonic(), STATEMENT_S))
        self._answer_connection.give_up()
        answering.join()

    def _detach(self) -> None:
        """Stop counting as a consumer: behind a pool the session lives on."""
        # if the store is away, the consumer counts until its time is over; the view may be gone
        with suppress(MillraceError, *connecting.PASSING):
            self._connection(lambda store: store.detach_consumer(self.subscription.view, self._name))

    def _log_end(self) -> None:
        fault = {"error": error_text(self._fault)} if self._fault is not None else {}
        log_line(logging.INFO, "ended", view=self.subscription.view, **self.counters.values(), **fault)
