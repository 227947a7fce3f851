"""Declared events as assets, one per decider: between the store's events and the read models that take them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import dagster as dg

from millrace.assets import OWNERS, Group, in_dagster
from millrace.event_schemas.fields import field_types
from millrace.event_schemas.model import DeclaredEvent
from millrace.read_models.declared.declaration import ReadModel


def asset_key(decider: str) -> dg.AssetKey:
    """Return the asset of a decider's declared events."""
    return dg.AssetKey(["events", in_dagster(decider, also=".-")])


def by_decider(events: Iterable[DeclaredEvent]) -> Mapping[str, list[DeclaredEvent]]:
    """Return the declared events of each decider."""
    found = defaultdict(list)
    for event in events:
        found[event.decider].append(event)
    return found


def declared_for(model: ReadModel, events: Iterable[DeclaredEvent]) -> list[DeclaredEvent]:
    """Return the declared events of the deciders that a read model names; none if it takes all deciders."""
    named = [event for event in events if event.decider in (model.deciders or ())]
    return [event for event in named if model.events is None or event.event in model.events]


def event_specs(events: Iterable[DeclaredEvent]) -> list[dg.AssetSpec]:
    """Make an asset of each decider; only services append its events."""
    return [
        dg.AssetSpec(
            asset_key(decider),
            deps=[dg.AssetKey(["event_store", "events"])],
            description=f"The events of the decider {decider}, as they are declared.",
            group_name=Group.EVENTS,
            kinds={"postgres", "json"},
            owners=OWNERS,
            metadata={
                "dagster/column_schema": dg.TableSchema([*_columns(declared)]),
                "versions": {f"{each.event} version {each.version}": each.description for each in declared},
            },
        )
        for decider, declared in by_decider(events).items()
    ]


def field_columns(event: DeclaredEvent) -> dict[str, str]:
    """Return the fields of an event as columns of its decider's asset, with their types."""
    return {f"{event.event}.{name}": type_ for name, type_ in field_types(event.schema).items()}


def _columns(events: Iterable[DeclaredEvent]) -> Iterator[dg.TableColumn]:
    newest = {event.event: event for event in events}  # they come in the order of their versions
    for event in newest.values():
        descriptions = {field.alias or name: field.description for name, field in event.model.model_fields.items()}
        for name, type_ in field_columns(event).items():
            described = descriptions.get(name.removeprefix(f"{event.event}.")) or event.description
            yield dg.TableColumn(name, type_, f"{described} Version {event.version}.")
