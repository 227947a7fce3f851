"""Measures what Dagster keeps of the weeks of a platform of forty views, and how long its pages take then.

A real `millrace up` makes the pattern: one drain that moves most log partitions of all views, one hourly look at every
check, some ticks of each sensor. The weeks are copies of these in Dagster's own database: a drain every ten minutes,
day after day, and each night `prune_runs`, which thinks that it is that night. Pages are opened in Debian's Chromium,
each by a browser that was at the start page only.

    python -m benchmarks week [--weeks 2] [--rounds 3]

It took 25 minutes on two cores that others used, too, and needs playwright and the package chromium.
"""

import argparse
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event

import psycopg
import requests
from playwright.sync_api import Browser, Request, expect, sync_playwright
from rich.console import Console
from rich.table import Table

from benchmarks.views import idle
from benchmarks.views.platform.read_models import VIEWS
from millrace.examples.shop.simulator import simulate
from millrace.resources.postgres.dsn import DATABASE

DRAIN, CHECKS, PRUNE = "drain_views", "apply_schema", "prune_runs"
EVERY_S = {DRAIN: 600, CHECKS: 3600}
# so that each view has some in most of its log partitions
EVENTS = 500
KEPT_DAYS = 7
# of the ticks that say nothing; what is older goes with the next tick of its sensor
TICK_DAYS = 1
PAGES = {
    "lineage": ("/asset-groups", "read_models"),
    "an asset with 16 partitions": ("/assets/read_models/orders?view=partitions", "p15"),
    "ticks of a sensor": ("/locations/__repository__@millrace/sensors/poll_orders", "View logs"),
    "runs": ("/runs", DRAIN),
}
PAGE_TARGET_S = 2
SLOW_S = 60
LAUNCH = """
mutation($job: String!, $config: RunConfigData!) { launchRun(executionParams: {mode: "default", runConfigData: $config,
  selector: {repositoryName: "__repository__", repositoryLocationName: "millrace", pipelineName: $job}}) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }
"""
# each sensor's newest tick again, as many seconds apart as its ticks were in the middle
COPY_TICKS = """
with seen as (
  select t.selector_id, t.timestamp - lag(t.timestamp) over (partition by t.selector_id order by t.id) as after
  from job_ticks t
  where t.type = 'SENSOR'
), each as (
  select s.selector_id, greatest(percentile_cont(0.5) within group (order by s.after), interval '1 second') as every
  from seen s
  where s.after is not null
  group by s.selector_id
), newest as (
  select distinct on (t.selector_id) t.*, e.every
  from job_ticks t
  join each e using (selector_id)
  where t.status = 'SKIPPED'
  order by t.selector_id, t.id desc
)
insert into job_ticks (job_origin_id, selector_id, status, type, timestamp, tick_body)
select
  n.job_origin_id, n.selector_id, n.status, n.type, a.at,
  regexp_replace(
    n.tick_body, '"(timestamp|end_timestamp)": [0-9.]+', '"\\1": ' || extract(epoch from a.at at time zone 'utc'), 'g'
  )
from newest n
cross join lateral generate_series(
  n.timestamp - make_interval(days => %s), n.timestamp - make_interval(days => %s) - n.every, n.every
) a (at)
"""
# one day of copies of a run, the oldest first: Dagster takes the highest id for the newest
MAKE_COPIES = """
create temporary table copies as
select r.run_id as original, gen_random_uuid()::text as run_id, make_interval(secs => s) as back
from runs r
cross join generate_series((%(day)s - 1) * 86400 + %(every)s, %(day)s * 86400, %(every)s) s
where r.run_id = %(run)s
"""
COPY_RUNS = (
    """
insert into runs (
  run_id, snapshot_id, pipeline_name, mode, status, run_body, partition, partition_set, create_timestamp,
  update_timestamp, start_time, end_time, backfill_id
)
select
  c.run_id, r.snapshot_id, r.pipeline_name, r.mode, r.status, replace(r.run_body, c.original, c.run_id), r.partition,
  r.partition_set, r.create_timestamp - c.back, r.update_timestamp - c.back,
  r.start_time - extract(epoch from c.back), r.end_time - extract(epoch from c.back), r.backfill_id
from runs r
join copies c on c.original = r.run_id
order by c.back desc
""",
    """
insert into run_tags (run_id, key, value)
select c.run_id, t.key, t.value from run_tags t join copies c on c.original = t.run_id
""",
    # the run's own events; with a drain those of no run, too: how each model stands
    """
insert into event_logs (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
select
  case when e.run_id = c.original then c.run_id else e.run_id end, replace(e.event, c.original, c.run_id),
  e.dagster_event_type, e.timestamp - c.back, e.step_key, e.asset_key, e.partition
from copies c
join runs r on r.run_id = c.original
join event_logs e
  on e.run_id = c.original
  or (r.pipeline_name = 'drain_views' and e.run_id = '' and e.dagster_event_type = 'ASSET_CHECK_EVALUATION')
where e.timestamp between r.create_timestamp and r.update_timestamp + interval '1 minute'
order by c.back desc, e.id
""",
    """
insert into asset_check_executions (
  asset_key, check_name, partition, run_id, execution_status, evaluation_event, evaluation_event_timestamp,
  evaluation_event_storage_id, materialization_event_storage_id, create_timestamp
)
select
  x.asset_key, x.check_name, x.partition, case when x.run_id = c.original then c.run_id else x.run_id end,
  x.execution_status, x.evaluation_event, x.evaluation_event_timestamp - c.back, x.evaluation_event_storage_id,
  x.materialization_event_storage_id, x.create_timestamp - c.back
from copies c
join runs r on r.run_id = c.original
join asset_check_executions x on x.run_id = c.original or (r.pipeline_name = 'drain_views' and x.run_id = '')
where x.create_timestamp between r.create_timestamp and r.update_timestamp + interval '1 minute'
order by c.back desc, x.id
""",
    "drop table copies",
)
TABLES = """
select c.relname, pg_total_relation_size(c.oid) / 1e6
from pg_class c
where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace
"""
OLD_TICKS = """
select count(*) from job_ticks
where type = 'SENSOR' and timestamp < now() at time zone 'utc' - make_interval(hours => %s)
"""
SUCCEEDED = """
select run_id from runs where pipeline_name = %s and status = 'SUCCESS' and run_id <> all (%s) order by id limit 1
"""


@dataclass(frozen=True)
class Kept:
    """What Dagster keeps: rows and MB by table, and how long `prune_runs` took that night."""

    rows: Mapping[str, int]
    megabytes: Mapping[str, float]
    pruned_s: float


@dataclass(frozen=True)
class Weeks:
    """What was kept after each week, and the seconds that pages took before the first one and after the last one."""

    kept: list[Kept]
    before: Mapping[str, "Opened"]
    after: Mapping[str, "Opened"]


@dataclass(frozen=True, order=True)
class Opened:
    """How long a page took in seconds, and of that the slowest of the questions that it asked Dagster."""

    seconds: float
    slowest_s: float


class History:
    """Dagster's database, into which days are written that were not."""

    def __init__(self, platform: idle.Platform, connection: psycopg.Connection) -> None:
        self._platform = platform
        self._connection = connection
        before = self._known(DRAIN)
        simulate(platform.server.dsn(DATABASE), rate=None, events=EVENTS, stop=Event())
        self._drain = self._succeeded(DRAIN, before)
        self._checks = self._run(CHECKS)

    def write_day(self, back: int) -> None:
        """Write the runs of the day that ended so many days ago, less one."""
        for run, every in ((self._drain, EVERY_S[DRAIN]), (self._checks, EVERY_S[CHECKS])):
            self._connection.execute(MAKE_COPIES, {"run": run, "day": back, "every": every})
            for statement in COPY_RUNS:
                self._connection.execute(statement.encode())

    def write_ticks(self, since: int, until: int) -> None:
        """Write the ticks of some days, and wait until Dagster has removed what it does not keep."""
        self._connection.execute(COPY_TICKS, (since, until))
        idle.wait(lambda: self._one(OLD_TICKS, (TICK_DAYS * 24 + 1,)) == 0)

    def prune(self, back: int) -> float:
        """Prune as of the end of that day; return the seconds."""
        began = time.monotonic()
        self._run(PRUNE, {"ops": {"prune_old_runs": {"config": {"keep_days": back - 1 + KEPT_DAYS}}}})
        self._connection.execute("vacuum (analyze)")
        return time.monotonic() - began

    def kept(self, pruned_s: float) -> Kept:
        """Look at what is there."""
        tables = {str(name): float(size) for name, size in self._connection.execute(TABLES).fetchall()}
        rows = {name: self._one(f"select count(*) from {name}") for name in tables}
        return Kept(rows, tables, pruned_s)

    def _run(self, job: str, config: Mapping[str, object] | None = None) -> str:
        known = self._known(job)
        asked = {"query": LAUNCH, "variables": {"job": job, "config": config or {}}}
        answer = requests.post(f"{self._platform.url}/graphql", json=asked, timeout=30).json()
        assert answer["data"]["launchRun"]["__typename"] == "LaunchRunSuccess", answer
        return self._succeeded(job, known)

    def _known(self, job: str) -> list[str]:
        found = self._connection.execute("select run_id from runs where pipeline_name = %s", (job,)).fetchall()
        return [str(run) for (run,) in found]

    def _succeeded(self, job: str, but: list[str]) -> str:
        def found() -> tuple[str] | None:
            return self._connection.execute(SUCCEEDED, (job, but)).fetchone()

        idle.wait(lambda: found() is not None)
        return str((found() or ("",))[0])

    def _one(self, query: str, values: tuple[object, ...] = ()) -> int:
        return int((self._connection.execute(query.encode(), values).fetchone() or (0,))[0])


def of_platform(platform: idle.Platform, weeks: int, rounds: int, say: Callable[[str], None]) -> Weeks:
    """Write weeks into a platform's Dagster, one day after the other, and look at what it keeps."""
    with psycopg.connect(platform.server.dsn("dagster"), autocommit=True) as connection:
        history = History(platform, connection)
        say("pages before")
        before = pages(platform.url, rounds)
        say("writing weeks")
        kept: list[Kept] = []
        # a day more than a week: at the end of it the first day goes
        last = weeks * KEPT_DAYS + 1
        for day in range(1, last + 1):
            back = last - day + 1
            history.write_day(back)
            if day <= KEPT_DAYS:
                # nothing is that old
                continue
            pruned_s = history.prune(back)
            if day % KEPT_DAYS == 1:
                history.write_ticks(TICK_DAYS + 1, TICK_DAYS if kept else 0)
                platform.rest()
                connection.execute("vacuum (analyze)")
                kept.append(history.kept(pruned_s))
                say(
                    f"week {len(kept)}: {sum(kept[-1].rows.values()):,} rows, {sum(kept[-1].megabytes.values()):,.0f} MB"
                )
        say("pages after")
        return Weeks(kept, before, pages(platform.url, rounds))


def pages(url: str, rounds: int) -> dict[str, Opened]:
    """Return how long each page took, in the middle, until it showed what it is opened for."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        took = {name: [_opened(browser, url, *page) for _ in range(rounds)] for name, page in PAGES.items()}
        browser.close()
    return {name: sorted(times)[len(times) // 2] for name, times in took.items()}


def _opened(browser: Browser, url: str, path: str, content: str) -> Opened:
    asked = [0.0]

    def note(request: Request) -> None:
        if request.url.endswith("/graphql") or "/graphql?" in request.url:
            asked.append((request.timing["responseStart"] - request.timing["requestStart"]) / 1000)

    with browser.new_context(base_url=url) as context:
        page = context.new_page()
        page.goto("/")
        page.on("requestfinished", note)
        began = time.perf_counter()
        page.goto(path)
        expect(page.get_by_text(content, exact=True).first).to_be_visible(timeout=SLOW_S * 1000)
        return Opened(time.perf_counter() - began, max(asked))


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="What Dagster keeps of the weeks of a platform of forty views.")
    parser.add_argument("--weeks", type=int, default=2, help="how many (2)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each page is opened (3)")
    arguments = parser.parse_args()
    if arguments.weeks < 1 or arguments.rounds < 1:
        parser.error("--weeks and --rounds must be at least 1")
    logging.disable(logging.WARNING)
    console = Console()
    if not console.is_terminal:
        console = Console(width=190)
    console.log(f"a platform of {VIEWS} views")
    with idle.platform() as platform:
        found = of_platform(platform, arguments.weeks, arguments.rounds, console.log)
    table = Table("line", "measured", "target", "beside", title=f"Weeks of {VIEWS} views, a drain every ten minutes")
    for number, kept in enumerate(found.kept, 1):
        first = found.kept[0]
        table.add_row(
            f"kept after week {number}",
            f"{sum(kept.rows.values()):,} rows, {sum(kept.megabytes.values()):,.0f} MB",
            "as after the first" if number > 1 else "",
            ", ".join(
                f"{name} {kept.rows[name]:,} ({kept.megabytes[name]:,.0f} MB)"
                for name in sorted(kept.rows, key=lambda name: -kept.megabytes[name])
                if kept.megabytes[name] > 1 or kept.rows[name] > first.rows[name]
            )
            + f"; pruned in {kept.pruned_s:.0f} s",
        )
    for name, after in found.after.items():
        before = found.before[name]
        table.add_row(
            name,
            f"{after.seconds:.1f} s; Dagster's slowest answer {after.slowest_s:.2f}",
            f"≤ {PAGE_TARGET_S}",
            f"before the first week {before.seconds:.1f} s; {before.slowest_s:.2f}",
        )
    table.add_row("load of the machine in the end", f"{os.getloadavg()[0]:.1f}", "", f"{os.cpu_count()} cores")
    console.print(table)


if __name__ == "__main__":
    main()
