"""Runs one of the measurements: `python -m benchmarks [WHICH] [its options]`, or `make bench ARGS='WHICH …'`.

Belongs here: which there are. Not here: what each measures, and its options.
"""

import runpy
import sys

WHICH = {
    "append_to_row": "the time from append to row, while `make run` runs in another terminal; the default",
    "event_store": "the event store beside fstore-sql's schema (about 20 minutes)",
    "spark": "Spark on the store beside JDBC and fstore-sql's schema (about 15 minutes)",
    "reads": "read models beside plain tables with the same rows: by key, all rows, a lookup (about 3 minutes)",
    "views": "many views on one machine: rounds beside a drain each, append to row (less than 10 minutes)",
    "ingest": "exactly-once messages, imports and change capture beside plain appends and pg_recvlogical (about 10 minutes)",
    "week": "what Dagster keeps of two weeks of forty views, and how long its pages take then (up to 25 minutes)",
}


def main() -> None:
    """Hand over to the measurement that is named first, with all that follows."""
    named = len(sys.argv) > 1 and not sys.argv[1].startswith("-")
    which = sys.argv.pop(1) if named else "append_to_row"
    if which not in WHICH:
        told = "\n".join(f"  {name:<14} {what}" for name, what in WHICH.items())
        sys.exit(f"There is no measurement {which!r}. There are:\n{told}")
    runpy.run_module(f"benchmarks.{which}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
