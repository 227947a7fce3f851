"""Owners and tags of what users declare: read models, subscriptions, captures, events. Dagster shows them."""

import re
from collections.abc import Mapping, Sequence

_OWNER = re.compile(r"team:.+|[^@\s]+@[^@\s]+\.[A-Za-z]{2,}")
_KEY = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")


def labels_fault(owners: Sequence[str], tags: Mapping[str, str]) -> str | None:
    """Return why Dagster would refuse these owners and tags, a sentence without its subject; None if it would not."""
    if isinstance(owners, str):
        return "owners is a text: write a list"
    if unfit := [each for each in owners if not _OWNER.fullmatch(each)]:
        return f"owner {unfit[0]!r} is neither an email address nor team: and a name"
    for key, value in tags.items():
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            return f"tag {key!r}: {value!r} has other characters than A-Z a-z 0-9 _ . -, or more than 63"
    return None
