"""The partitions of assets: log partitions (fixed per database) and views (they come and go)."""

import re

import dagster as dg

VIEWS = dg.DynamicPartitionsDefinition(name="views")
# the asset that drains build, with one partition per view
VIEW_EVENTS = dg.AssetKey(["consumption", "view_events"])


def log_partitions(count: int) -> dg.StaticPartitionsDefinition:
    """Return the log partitions as asset partitions p00, p01 and so on."""
    return dg.StaticPartitionsDefinition([log_partition_key(partition) for partition in range(count)])


def log_partition_key(partition: int) -> str:
    """Return the key of a log partition."""
    return f"p{partition:02}"


def log_partition_of(key: str) -> int:
    """Return the log partition of a key."""
    return int(key.removeprefix("p"))


def is_log_partition(key: str) -> bool:
    """Return whether a key is that of a log partition, and not of a view or a day."""
    return re.fullmatch(r"p[0-9]{2,}", key) is not None
