"""What Dagster shows of declared assets beside what they compute: owners, tags, code versions, links to their code."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg

from millrace.assets.declarations import Declarations
from millrace.assets.declared_events import asset_key as events_key
from millrace.assets.declared_events import by_decider
from millrace.assets.shown_partitions import code_version
from millrace.assets.subscriptions import asset_key as subscription_key
from millrace.user_code import snake_case

CODE_REFERENCES = "dagster/code_references"
_DECLARES = re.compile(r"(?:class|def|async def)\s+(\w+)")


class Labels(NamedTuple):
    """What Dagster shows of one asset."""

    owners: Iterable[str]
    tags: Mapping[str, str]
    file: Path | None = None
    name: str = ""
    code_version: str | None = None


def labelled(
    found: Declarations, assets: Iterable[dg.AssetsDefinition | dg.AssetSpec], code_url: str | None
) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Return assets with their owners, tags and links to the code, from what is declared of each.

    Args:
        found: The declarations.
        assets: The assets of the whole platform.
        code_url: The page of the repository's files, such as https://example.com/us/platform/blob/main; None for
            links to the files here.
    """
    labels = dict(_labels(found))

    def with_labels(spec: dg.AssetSpec) -> dg.AssetSpec:
        label = labels.get(spec.key)
        if label is None:
            return spec
        named = spec.replace_attributes(owners=[*label.owners] or [*spec.owners], code_version=label.code_version)
        return named.merge_attributes(tags=dict(label.tags), metadata=_link(label, found.package, code_url))

    return [*dg.map_asset_specs(with_labels, [*assets])]


def _labels(found: Declarations) -> Iterator[tuple[dg.AssetKey, Labels]]:
    for model in found.models.values():
        for each in (model, *model.rollups):
            file = found.files.get(f"read model {each.name}")
            version = code_version(each) if each is model else None
            yield dg.AssetKey(["read_models", each.name]), Labels(model.owners, model.tags, file, each.name, version)
    for subscription in found.subscriptions.values():
        label = Labels(subscription.owners, subscription.tags, found.files.get(f"view {subscription.view}"))
        yield subscription_key(subscription), label._replace(name=subscription.name.rpartition(".")[2])
    for capture in found.captures.values():
        label = Labels(capture.owners, capture.tags, found.files.get(f"capture {capture.name}"))
        for table in capture.tables:
            yield dg.AssetKey([capture.name, table.schema, table.table]), label
    for decider, events in by_decider(found.events).items():
        owners = dict.fromkeys(owner for event in events for owner in event.owners)
        tags = {key: value for event in events for key, value in event.tags.items()}
        yield events_key(decider), Labels(owners, tags, found.files.get(str(events[0])), events[0].model.__name__)


def _link(label: Labels, package: str | None, code_url: str | None) -> dict[str, Any]:
    """Return the link to the line that declares an asset, as metadata; nothing if no file does."""
    if label.file is None or not label.file.is_file():
        return {}
    line = next(
        (
            number
            for number, text in enumerate(label.file.read_text(errors="replace").splitlines(), 1)
            if (found := _DECLARES.match(text)) and label.name in {found[1], snake_case(found[1])}
        ),
        1,
    )
    with warnings.catch_warnings():
        # Dagster may still change these classes; its version is pinned, and a test checks them
        warnings.simplefilter("ignore", dg.BetaWarning)
        reference: dg.LocalFileCodeReference | dg.UrlCodeReference
        if code_url and package:
            # below the folder that the package is in, which often has the package's name, too
            top, folders = package.partition(".")[0], label.file.parts
            inside = Path(*folders[max(depth for depth, name in enumerate(folders) if name == top) :])
            reference = dg.UrlCodeReference(url=f"{code_url.rstrip('/')}/{inside}#L{line}")
        else:
            reference = dg.LocalFileCodeReference(file_path=str(label.file), line_number=line)
        return {CODE_REFERENCES: dg.CodeReferencesMetadataValue(code_references=[reference])}
