"""Running Millrace from code of your own: migrations, consumers, resources of Dagster, services and commands.

Names are imported at their first use: few processes need Dagster, Spark and the command line at once.
"""

from typing import TYPE_CHECKING

from millrace.late_imports import imported_late

if TYPE_CHECKING:
    from millrace.event_store.migrations import migrate
    from millrace.event_store.wake_ups import Wakeups
    from millrace.handlers.consumer import consume
    from millrace.handlers.declaration import Subscription
    from millrace.handlers.log_lines import Counters
    from millrace.platform_defs.cli.options import DsnOption, chosen_dsn
    from millrace.platform_defs.cli.signals import stop_on_signals
    from millrace.platform_defs.local.supervisor import Service
    from millrace.platform_defs.local.surroundings import Surroundings
    from millrace.postgres.dsn import embedded_dsn
    from millrace.read_models.declared.declaration import ReadModel
    from millrace.resources.postgres import PostgresResource
    from millrace.resources.spark import SparkResource
else:
    # hidden from type checkers, which would accept every name
    __getattr__ = imported_late(
        __name__,
        {
            "platform_defs.cli.options": "DsnOption chosen_dsn",
            "platform_defs.cli.signals": "stop_on_signals",
            "platform_defs.local.supervisor": "Service",
            "platform_defs.local.surroundings": "Surroundings",
            "handlers.consumer": "consume",
            "handlers.declaration": "Subscription",
            "handlers.log_lines": "Counters",
            "event_store.migrations": "migrate",
            "event_store.wake_ups": "Wakeups",
            "postgres.dsn": "embedded_dsn",
            "resources.postgres": "PostgresResource",
            "read_models.declared.declaration": "ReadModel",
            "resources.spark": "SparkResource",
        },
    )

__all__ = [
    "Counters", "DsnOption", "PostgresResource", "ReadModel", "Service", "SparkResource", "Subscription",
    "Surroundings", "Wakeups", "chosen_dsn", "consume", "embedded_dsn", "migrate", "stop_on_signals",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*globals(), *__all__]
