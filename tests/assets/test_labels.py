"""What Dagster shows of declared assets beside what they compute: owners, tags, versions, links to the code."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from millrace.assets.declarations import declared
from millrace.assets.shown_partitions import ShownPartitions
from millrace.capture import Capture, CapturedTable
from millrace.errors import InvalidCapture, InvalidEvent, InvalidReadModel, InvalidSubscription
from millrace.event_schemas import event
from millrace.handlers.declaration import Subscription
from millrace.labels import labels_fault
from millrace.platform_defs.loading import build_defs
from millrace.read_models.declared.declaration import ReadModel, read_model
from millrace.read_models.declared.words import count, stream_id
from millrace.settings import Settings

SHOP = declared("millrace.examples.shop")
CUSTOM: dict[str, Any] = {"owners": ("team:payments", "a@example.com"), "tags": {"tier": "1", "us/pii": "no"}}


def test_owners_tags_and_code_are_those_of_the_declaration() -> None:
    found = dataclasses.replace(
        SHOP,
        models={**SHOP.models, "orders": dataclasses.replace(SHOP.models["orders"], **CUSTOM)},
        subscriptions={view: dataclasses.replace(each, **CUSTOM) for view, each in SHOP.subscriptions.items()},
        captures={name: dataclasses.replace(each, **CUSTOM) for name, each in SHOP.captures.items()},
        events=tuple(dataclasses.replace(each, **CUSTOM) for each in SHOP.events if each.decider == "order"),
    )
    graph = build_defs(declarations=found).resolve_asset_graph()
    for key, line in (
        (["read_models", "orders"], "read_models/orders.py"),
        (["subscriptions", "mails"], "subscriptions/mails.py"),
        (["crm", "public", "customers"], "captures/crm.py"),
        (["events", "order"], "events.py"),
    ):
        node = graph.get(dg.AssetKey(key))
        assert [*node.owners] == [*CUSTOM["owners"]]
        assert {**node.tags}.items() >= CUSTOM["tags"].items()
        (reference,) = node.metadata["dagster/code_references"].code_references
        assert reference.file_path.endswith(line)
    orders = graph.get(dg.AssetKey(["read_models", "orders"]))
    assert orders.code_version == SHOP.models["orders"].fingerprint[:12]
    payments = graph.get(dg.AssetKey(["read_models", "payments"]))
    assert [*payments.owners] == ["team:data-platform"]


def test_a_link_leads_to_the_line_that_declares() -> None:
    def reference(**settings: Any) -> Any:  # noqa: ANN401 - one of two kinds
        graph = build_defs(declarations=SHOP, settings=Settings(**settings)).resolve_asset_graph()
        return graph.get(dg.AssetKey(["read_models", "orders"])).metadata["dagster/code_references"].code_references[0]

    here = reference()
    lines = Path(here.file_path).read_text().splitlines()
    assert lines[here.line_number - 1].startswith("class Orders")
    there = reference(code_url="https://example.com/us/platform/blob/main/").url
    assert (
        there
        == f"https://example.com/us/platform/blob/main/millrace/examples/shop/read_models/orders.py#L{here.line_number}"
    )


def handle(event: object) -> None:
    """Do nothing."""


UNFIT: list[tuple[Sequence[str], Mapping[str, str]]] = [
    ("team:a", {}), (["payments"], {}), (["team:"], {}), (["a@b"], {}), ([], {"a b": "c"}), ([], {"a": "c d"}),
    ([], {"a": "x" * 64}), ([], {"a/b/c": "d"}),
]  # fmt: skip


def declare_model(**labels: Any) -> ReadModel:  # noqa: ANN401 - passed on
    @read_model(view="v", key=["k"], **labels)
    class Model:
        """A model."""

        k = stream_id()
        n = count()

    assert isinstance(Model, ReadModel)
    return Model


def declare_event(**labels: Any) -> object:  # noqa: ANN401 - passed on
    from pydantic import BaseModel

    @event(decider="d", **labels)
    class Happened(BaseModel):
        """It happened."""

    return Happened


@pytest.mark.parametrize(
    ("declare", "refusal"),
    [
        (declare_model, InvalidReadModel),
        (declare_event, InvalidEvent),
        (lambda **labels: Capture("c", str, (CapturedTable("t"),), **labels), InvalidCapture),
        (lambda **labels: Subscription(handle, "v", **labels), InvalidSubscription),
    ],
)
def test_what_dagster_would_refuse_is_refused_where_it_is_declared(
    declare: Callable[..., object], refusal: type[Exception]
) -> None:
    assert declare(**CUSTOM)
    for owners, tags in UNFIT:
        with pytest.raises(refusal, match=r"owner|tag"):
            declare(owners=owners, tags=tags)


def test_owners_and_tags_are_refused_that_dagster_refuses() -> None:
    for owners, tags in [*UNFIT[1:], (CUSTOM["owners"], CUSTOM["tags"])]:
        try:
            dg.AssetSpec("a", owners=[*owners], tags=dict(tags))
        except (dg.DagsterError, ValueError):
            assert labels_fault(owners, tags)
        else:
            assert labels_fault(owners, tags) is None


def test_a_materialization_says_by_which_code_and_up_to_where_its_rows_are(instance: dg.DagsterInstance) -> None:
    """What Dagster compares to call an asset below it outdated, and to say that the code changed."""
    orders = dataclasses.replace(SHOP.models["orders"], rollups=())
    run = instance.create_run_for_job(build_defs(declarations=SHOP).resolve_job_def("drain"))
    for position in (5, 7):
        ShownPartitions(instance, run, orders).make_green({3: {"events": 2, "position": position}}, {})
        newest = instance.get_latest_materialization_event(dg.AssetKey(["read_models", "orders"]))
        assert newest is not None
        assert newest.asset_materialization is not None
        code = orders.fingerprint[:12]
        tags = {"dagster/code_version": code, "dagster/data_version": f"{code}-{position}"}
        assert (newest.asset_materialization.tags or {}).items() >= tags.items()


def test_a_link_begins_at_the_package_in_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `millrace new` lays it out; a file of another encoding hides no asset."""
    (package := tmp_path / "ours_here" / "ours_here" / "read_models").mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    model = "# coding: latin-1\n# caf\xe9\nfrom millrace import count, read_model, stream_id\n\n\n" + (
        '@read_model(view="n", key=["k"])\nclass Numbers:\n    """Numbers."""\n\n    k = stream_id()\n    n = count()\n'
    )
    (package / "numbers.py").write_bytes(model.encode("latin-1"))
    monkeypatch.syspath_prepend(str(tmp_path / "ours_here"))
    found = declared("ours_here")
    assert found.faults == ()
    graph = build_defs(declarations=found, settings=Settings(code_url="https://example.com/x")).resolve_asset_graph()
    (reference,) = (
        graph.get(dg.AssetKey(["read_models", "numbers"])).metadata["dagster/code_references"].code_references
    )
    assert reference.url == "https://example.com/x/ours_here/read_models/numbers.py#L7"
