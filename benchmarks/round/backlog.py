"""A backlog of several views: rounds for all views against a drain for each."""

from collections.abc import Callable

from benchmarks.round.bench import Bench, Cpu, Shop, append
from benchmarks.round.models import models
from millrace.drain.collected import ROUND_CONFIGURATION
from millrace.drain.loop import Drain
from millrace.drain.view_drain import ViewDrain
from millrace.spark import spark_session

EVENTS = 100_000
VIEWS = 10


def of_views(bench: Bench, rounds: int) -> dict[str, list[Cpu]]:
    """Return the seconds of CPU for ten views together, for a drain of each, and for one of them alone."""
    log = bench.store()
    append(log, Shop().events(EVENTS))
    ways: dict[str, Callable[[str], None]] = {
        "together": lambda dsn: _together(dsn, VIEWS),
        "own": lambda dsn: _drain_apart(dsn, VIEWS),
        "one": lambda dsn: _drain_apart(dsn, 1),
    }
    costs: dict[str, list[Cpu]] = {}
    # the first round warms up
    for number in range(1 + rounds):
        for way, work in ways.items():
            dsn = bench.copy(log)
            before = bench.cpu()
            work(dsn)
            if number:
                costs.setdefault(way, []).append(bench.cpu().since(before))
    return costs


def _together(dsn: str, views: int) -> None:
    with (
        spark_session(ROUND_CONFIGURATION) as session,
        Drain(dsn, models(views), lambda: session, "together") as shared,
    ):
        shared.run(budget_s=3600, idle_s=0)
        for member in shared.members:
            if member.away is not None:
                raise RuntimeError(f"{member.declared.view}: {member.away}")


def _drain_apart(dsn: str, views: int) -> None:
    with spark_session() as session:
        for model in models(views):
            with ViewDrain(dsn, model, lambda: session, f"own {model.view}") as consumer:
                consumer.drain(budget_s=3600, idle_s=0)
