"""The asset graph, one file per stage: bodies call functions of `millrace`, and show the outcome."""

import re

OWNERS = ["team:data-platform"]


class Group:
    """The groups of assets, in the order in which events pass them; no enum, because Dagster wants plain text."""

    SOURCES = "sources"  # tables of other databases
    CHANGE_CAPTURE = "change_capture"  # their changes, which become events
    EVENT_STORE = "event_store"  # the tables of the store
    EVENTS = "events"  # the declared events of each decider
    CONSUMPTION = "consumption"  # the drains of views
    READ_MODELS = "read_models"  # the tables that drains build
    SUBSCRIPTIONS = "subscriptions"  # functions that are called for events, elsewhere
    ARCHIVE = "archive"  # the log in files
    REPORTS = "reports"  # tables of days, which users declare


def in_dagster(name: str, *, also: str = "") -> str:
    """Return a name as Dagster takes it: a refused character, which would fail all declarations, becomes a number."""
    return re.sub(rf"[^\w{also}]", lambda found: f"_{ord(found[0]):x}_", name, flags=re.ASCII)
