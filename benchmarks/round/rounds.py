"""A warm round of few new events for several views: a drain for each view against rounds for all."""

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

from benchmarks.round.bench import Bench, Cpu, Shop, append
from benchmarks.round.models import models
from millrace.drain.collected import ROUND_CONFIGURATION
from millrace.drain.loop import Drain
from millrace.drain.view_drain import ViewDrain
from millrace.spark import spark_session

EVENTS = 200
WARM_UP = 10


def of_views(bench: Bench, views: int, rounds: int, *, own: bool) -> dict[str, list[Cpu]]:
    """Return the seconds of CPU of each round, by the way it was done."""
    shop, dsn = Shop(), bench.store()
    append(dsn, shop.events(20 * EVENTS))
    costs: dict[str, list[Cpu]] = {}
    with ExitStack() as stack:
        session = stack.enter_context(spark_session(ROUND_CONFIGURATION))
        declared = models(views)
        together = stack.enter_context(Drain(dsn, declared, lambda: session, "together"))
        ways: dict[str, Callable[[], object]] = {"together": lambda: together.run(budget_s=600, idle_s=0)}
        if own:
            other = bench.store()
            append(other, Shop().events(20 * EVENTS))
            plain = stack.enter_context(spark_session())
            consumers = [
                stack.enter_context(ViewDrain(other, model, lambda: plain, f"own {model.view}")) for model in declared
            ]
            ways["own"] = lambda: [consumer.drain(budget_s=600, idle_s=0) for consumer in consumers]
        for number in range(WARM_UP + rounds):
            events = shop.events(EVENTS)
            append(dsn, events)
            if own:
                append(other, events)
            for way, work in ways.items():
                before = bench.cpu()
                work()
                if number >= WARM_UP:
                    costs.setdefault(way, []).append(bench.cpu().since(before))
        for member in together.members:
            if member.away is not None:
                raise RuntimeError(f"{member.declared.view}: {member.away}")
    return costs


def middle(costs: list[Cpu]) -> Cpu:
    """Return the medians."""
    return Cpu(*(median(getattr(one, name) for one in costs) for name in ("driver", "spark", "workers", "postgres")))
