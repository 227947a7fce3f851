"""The definitions of a package of declarations, without what Dagster does not take of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import dagster as dg
from dagster_shared.check import CheckError

from millrace.assets.declarations import Declarations, Fault, Part, declared
from millrace.platform_defs.assembly import assembled
from millrace.settings import Settings

# what Dagster raises for an object that it does not take
REFUSALS = (dg.DagsterError, CheckError, ValueError, TypeError)


def build_defs(
    *,
    declarations: Declarations | None = None,
    settings: Settings | None = None,
    resources: Mapping[str, object] | None = None,
) -> dg.Definitions:
    """Make the definitions; tests pass their own declarations, settings and resources.

    Raises:
        InvalidDeclarations: The package that the settings name is not there, or is empty.
    """
    settings = settings or Settings()
    found = declared(settings.declared_package) if declarations is None else declarations
    return loadable(found, settings, resources)[1]


def loadable(
    found: Declarations, settings: Settings, resources: Mapping[str, object] | None = None
) -> tuple[Declarations, dg.Definitions]:
    """Return what Dagster takes of declarations, the rest as faults, and the definitions of that.

    A part of `defs` costs itself alone that needs a resource that is not there, or has the name of another thing.
    """
    ours = assembled(found, settings, resources)

    def tried(parts: Sequence[Part]) -> dg.Definitions:
        defs = dg.Definitions.merge(ours, *(part.definitions for part in parts))
        # what Dagster does with it next, and keeps
        defs.get_repository_def()
        return defs

    def fitting(taken: tuple[Part, ...], parts: Sequence[Part]) -> tuple[tuple[Part, ...], list[Fault]]:
        """Return the parts that load together with those that are taken; by halves where they do not."""
        try:
            tried([*taken, *parts])
        except REFUSALS as error:
            if len(parts) == 1:
                (part,) = parts
                said = f"{part.name} is left out: {str(error).strip().partition(chr(10))[0]}"
                return taken, [Fault("defs", part.name.rpartition(".")[2], part.file, 0, said)]
            half = len(parts) // 2
            taken, first = fitting(taken, parts[:half])
            taken, second = fitting(taken, parts[half:])
            return taken, first + second
        return (*taken, *parts), []

    if not found.parts:
        return found, tried(())
    taken, faults = fitting((), found.parts)
    kept = replace(found, parts=taken, faults=(*found.faults, *faults))
    # the definitions name the files that fail
    ours = assembled(kept, settings, resources) if faults else ours
    return kept, tried(taken)
