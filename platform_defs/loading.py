"""The definitions of a package of declarations, without those that Dagster refuses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import dagster as dg
from dagster_shared.check import CheckError

from millrace.assets.declarations import Declarations, Fault, InvalidDeclarations, Part, declared
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

    Of `defs`, only a file is left out that needs a missing resource, or an object of which has the name of another.

    Raises:
        InvalidDeclarations: Dagster refuses the rest, too.
    """
    try:
        return _loadable(found, settings, resources)
    except REFUSALS as error:
        said = " ".join(str(error).split())[:300]
        raise InvalidDeclarations("Dagster refuses all that is declared.", detail=said) from error


def _loadable(
    found: Declarations, settings: Settings, resources: Mapping[str, object] | None
) -> tuple[Declarations, dg.Definitions]:
    ours = assembled(found, settings, resources)

    def tried(parts: Sequence[Part]) -> dg.Definitions:
        defs = dg.Definitions.merge(ours, *(part.definitions for part in parts))
        # Dagster's own next step; it caches the result
        defs.get_repository_def()
        return defs

    def fitting(taken: tuple[Part, ...], parts: Sequence[Part]) -> tuple[tuple[Part, ...], list[Fault]]:
        """Return `taken` with those parts that load beside it; search by halves for the others."""
        try:
            tried([*taken, *parts])
        except REFUSALS as error:
            if len(parts) == 1:
                (part,) = parts
                reason = f"{part.name} is left out: {str(error).strip().partition(chr(10))[0]}"
                return taken, [Fault("defs", part.name.rpartition(".")[2], part.file, 0, reason)]
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
