"""What an event costs in storage and in WAL, by the number of views."""

from benchmarks.event_store.bench import Bench, Database, Result, append_script


def per_event(bench: Bench) -> list[Result]:
    """Single appends with 0, 10 and 100 views; ours with sequencing."""
    results = []
    for views in (0, 10, 100):
        (ours_disk, ours_wal), (disk, wal) = (
            appended(bench, database, views) for database in (bench.ours(), bench.theirs())
        )
        results.append(Result(f"storage, {views} views", ours_disk, disk, "bytes/event", ratio=disk / ours_disk))
        results.append(Result(f"WAL, {views} views", ours_wal, wal, "bytes/event", ratio=wal / ours_wal))
    return results


def appended(bench: Bench, database: Database, views: int) -> tuple[float, float]:
    """Append for some seconds; return the bytes of tables and indexes, and of WAL, per event."""
    database.register_views(views)
    database.run("checkpoint")
    disk, wal, _ = measured(database)
    bench.pgbench(database, append_script(database), 4)
    if database.ours:
        database.run("select event_store_platform.sequence_events()")
    disk_after, wal_after, events = measured(database)
    return (disk_after - disk) / events, (wal_after - wal) / events


def measured(database: Database) -> tuple[float, float, float]:
    """Return the bytes of all tables with their indexes, the WAL position, and the number of events."""
    schema = "event_store" if database.ours else "public"
    ((disk, wal, events),) = database.run(
        f"""
        select
          (
            select sum(pg_total_relation_size(oid))::float from pg_class
            where relnamespace = '{schema}'::regnamespace and relkind = 'r'
          ),
          (pg_current_wal_lsn() - '0/0')::float,
          (select count(*) from {schema}.events)::float
        """
    )
    return float(str(disk)), float(str(wal)), float(str(events))
