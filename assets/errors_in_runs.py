"""Stand-ins for declarations that fail to load: the place in the graph stays, and says why it is empty."""

from collections.abc import Sequence

import dagster as dg

from millrace.assets import OWNERS, in_dagster
from millrace.assets.declarations import Declarations, Fault

# no group of ours: jobs select groups, and a stand-in cannot be materialized
GROUP = "not_loaded"


def faults_by_asset(declared: Declarations) -> dict[dg.AssetKey, list[Fault]]:
    """Return the files that fail, by the asset that stands for each and has the file's name."""
    found: dict[dg.AssetKey, list[Fault]] = {}
    for fault in declared.faults:
        found.setdefault(dg.AssetKey([fault.room, in_dagster(fault.name)]), []).append(fault)
    return found


def stand_ins(declared: Declarations, defined: Sequence[dg.AssetKey]) -> list[dg.AssetSpec]:
    """Make an asset of each file that fails, unless another file declares an asset of that name."""
    return [
        dg.AssetSpec(
            key,
            group_name=GROUP,
            owners=OWNERS,
            kinds={"python"},
            description=f"Its declaration fails to load; what it built before stays as it was. {faults[0]}",
            metadata={"fails": [str(fault) for fault in faults]},
        )
        for key, faults in faults_by_asset(declared).items()
        if key not in defined
    ]
