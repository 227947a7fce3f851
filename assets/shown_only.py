"""The assets that Dagster shows and never runs: captured tables, events, subscriptions, rollups, files that fail."""

from collections.abc import Iterable

import dagster as dg

from millrace.assets.captures.asset import source_table_specs
from millrace.assets.declarations import Declarations
from millrace.assets.declared_events import event_specs
from millrace.assets.errors_in_runs import stand_ins
from millrace.assets.read_models.asset import rollup_specs
from millrace.assets.subscriptions import subscription_specs


def specs_shown_only(declared: Declarations, assets: Iterable[dg.AssetsDefinition]) -> list[dg.AssetSpec]:
    """Make the specs of the assets that are shown and never run."""
    specs = [
        *source_table_specs(declared.captures),
        *event_specs(declared.events),
        *subscription_specs(declared.subscriptions.values()),
        *rollup_specs(declared.rollups.values()),
    ]
    defined = [*(key for each in assets for key in each.keys), *(spec.key for spec in specs)]
    return [*specs, *stand_ins(declared, defined)]
