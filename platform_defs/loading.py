"""The definitions of a package of declarations, without those that Dagster refuses."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_shared.check import CheckError

from millrace.assets.declarations import Declarations, Fault, declared
from millrace.platform_defs.assembly import assembled
from millrace.settings import Settings

# errors that Dagster raises for an object that it refuses
REFUSALS = (dg.DagsterError, CheckError, ValueError, TypeError)


def build_defs(
    *,
    declarations: Declarations | None = None,
    settings: Settings | None = None,
    resources: Mapping[str, object] | None = None,
) -> dg.Definitions:
    """Make the definitions; tests pass their own declarations, settings and resources.

    Raises:
        InvalidDeclarations: The package that the settings name is missing or empty.
    """
    settings = settings or Settings()
    found = declared(settings.declared_package) if declarations is None else declarations
    return loadable(found, settings, resources)[1]


def loadable(
    found: Declarations, settings: Settings, resources: Mapping[str, object] | None = None
) -> tuple[Declarations, dg.Definitions]:
    """Return the declarations that Dagster accepts, with the rest as faults, and their definitions.

    A report or schedule that needs a missing resource, or has the name of another one, is alone left out.
    """

    def tried(declarations: Declarations) -> dg.Definitions:
        defs = assembled(declarations, settings, resources)
        # Dagster's own next step; it caches the result
        defs.get_repository_def()
        return defs

    try:
        return found, tried(found)
    except REFUSALS:
        kept = replace(found, reports=(), schedules=())
    things = [("reports", f"report {min(each.keys).to_user_string()}", each) for each in found.reports]
    for room, name, thing in [*things, *(("schedules", f"schedule {each.name}", each) for each in found.schedules)]:
        grown: dict[str, Any] = {room: (*getattr(kept, room), thing)}
        more = replace(kept, **grown)
        try:
            tried(more)
        except REFUSALS as error:
            said = f"{name} is left out: {str(error).strip().partition(chr(10))[0]}"
            file = found.files.get(name, Path(name))
            more = replace(kept, faults=(*kept.faults, Fault(room, re.split("[ /]", name)[-1], file, 0, said)))
        kept = more
    return kept, tried(kept)
