"""Running Millrace from code of your own: migrations, consumers, resources of Dagster, services and commands.

Names are looked up when they are first used: few processes need Dagster, Spark and the command line at once.
"""

from typing import TYPE_CHECKING

from millrace.late_imports import imported_late

if TYPE_CHECKING:
    from millrace.platform_defs.cli.options import DsnOption, chosen_dsn
    from millrace.platform_defs.cli.signals import stop_on_signals
    from millrace.platform_defs.local.supervisor import Service
    from millrace.platform_defs.local.surroundings import Surroundings
    from millrace.resources.consumers.consumer import consume
    from millrace.resources.consumers.declaration import Subscription
    from millrace.resources.consumers.log_lines import Counters
    from millrace.resources.event_store.migrations import migrate
    from millrace.resources.event_store.wake_ups import Wakeups
    from millrace.resources.postgres.dsn import embedded_dsn
    from millrace.resources.postgres.resource import PostgresResource
    from millrace.resources.read_models.declared.declaration import ReadModel
    from millrace.resources.spark.resource import SparkResource
else:
    # unseen by a type checker, which would take every name for one of ours
    __getattr__ = imported_late(
        __name__,
        {
            "platform_defs.cli.options": "DsnOption chosen_dsn",
            "platform_defs.cli.signals": "stop_on_signals",
            "platform_defs.local.supervisor": "Service",
            "platform_defs.local.surroundings": "Surroundings",
            "resources.consumers.consumer": "consume",
            "resources.consumers.declaration": "Subscription",
            "resources.consumers.log_lines": "Counters",
            "resources.event_store.migrations": "migrate",
            "resources.event_store.wake_ups": "Wakeups",
            "resources.postgres.dsn": "embedded_dsn",
            "resources.postgres.resource": "PostgresResource",
            "resources.read_models.declared.declaration": "ReadModel",
            "resources.spark.resource": "SparkResource",
        },
    )

__all__ = [
    "Counters", "DsnOption", "PostgresResource", "ReadModel", "Service", "SparkResource", "Subscription",
    "Surroundings", "Wakeups", "chosen_dsn", "consume", "embedded_dsn", "migrate", "stop_on_signals",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*globals(), *__all__]
