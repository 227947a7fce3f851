"""`dg dev` in a foreign instance: it starts a daemon of its own, beside the one that starts drains for this store."""

import os
from pathlib import Path
from typing import Any

import dagster as dg

WHY_OFF = "Off in `dg dev`: the daemon of `millrace up`, or of the deployment, starts what is due."


def is_foreign() -> bool:
    """Return whether `dg dev` or `dagster dev` loads the definitions, for an instance without our dagster.yaml."""
    # Dagster, too, takes the file of the current folder where DAGSTER_HOME is not set
    file = Path(os.getenv("DAGSTER_HOME", ""), "dagster.yaml")
    is_ours = file.is_file() and "millrace.platform_defs" in file.read_text()
    return bool(os.getenv("DAGSTER_IS_DEV_CLI")) and not is_ours


def switch_off(defs: dg.Definitions) -> None:
    """Turn every sensor and schedule off by default, and say why; a person may turn one on."""
    repository = defs.get_repository_def()
    automations: list[Any] = [*repository.sensor_defs, *repository.schedule_defs]
    for each in automations:
        each._default_status = type(each.default_status).STOPPED
        each._description = f"{WHY_OFF} {each.description or ''}".rstrip()
