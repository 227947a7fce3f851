"""Runs one of the measurements: `python -m benchmarks WHICH [its options]`, or `make bench ARGS='WHICH …'`."""

import runpy
import sys

WHICH = {
    "append": "appends beside fstore-sql's schema, a bare INSERT and a bare COPY",
    "round": "many views on one machine: rounds beside a drain each, append to row",
    "rebuild": "rebuilds from Postgres, from the archive, on a cluster",
    "ingest": "exactly-once messages, imports and change capture beside plain appends and pg_recvlogical (about 10 minutes)",
    "consumers": "functions of subscriptions beside fstore-sql's loop, and pushes",
    "fresh": "a rare event to its row on a whole platform, and what the platform costs at rest (20 minutes)",
    "reads": "read models beside plain tables with the same rows: by key, all rows, a lookup (about 3 minutes)",
}


def main() -> None:
    """Run the measurement that the first argument names, with the other arguments."""
    which = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if which not in WHICH:
        choices = "\n".join(f"  {name:<10} {what}" for name, what in WHICH.items())
        sys.exit(f"There is no measurement {which!r}. There are:\n{choices}")
    runpy.run_module(f"benchmarks.{which}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
