"""Fingerprints tell whether a declaration changed: where one changes by itself, every model is built anew."""

from dataclasses import replace
from typing import cast

import pytest

from millrace import ReadModel, count
from millrace.assets.declarations import declared
from tests.support.building import read_models as models

# as they were when these models were first declared, or last changed
FINGERPRINTS = {
    "crm_customer_history": "b252b15349f5bbf33713f28f83347af9ed772ecf8856e14f8582bfe41a09431c",
    "crm_customers": "b478db994be0e81d505f72e35082b35ee3374375a86b2418f49d7696c3852430",
    "crossing": "085826102ed606171a7b2754eba5a7a2522156eee449d144ddf7b928fad97a9e",
    "customers": "a7649137933607431f30299e213368b36dece921d70b0be22f7314c643c96375",
    "everything": "e958c8be0109deccfb6f047b129c1e1cee30c7194c0074c03ea13d77e2f47685",
    "going": "71f49e340bb1ede381c5ff65a33d35b210561fcf15db7a9e99e28d1ab1879cc6",
    "going_across": "897bb0f9013a9b519933d19fffe1687771c6a6cc850241553de76ca173428ea1",
    "machines": "ef1da1a49e3ffcc9b70e4ec92dfcfc0f43f100f4e4d1ce3736d80bc586e2da30",
    "orders": "2067e9cce765dd71a004f7df4094840b5157eabd34030f01dee75eb850d4745a",
    "shipments": "4b322e7e64d66f87cb652b05af311261783f1a6d4188172b6282e42e811a20e4",
    "uses": "f67073bc7cc0a5000b7d0f3aa81123f96091f8bea20358963e6129d0a865c355",
}
MODELS = dict(declared("millrace.examples.shop", ["read_models"]).models) | {
    model.name: model for model in vars(models).values() if isinstance(model, ReadModel)
}


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_the_fingerprint_of_a_declaration_that_did_not_change_is_the_same(name: str) -> None:
    assert MODELS[name].fingerprint == FINGERPRINTS[name]


def test_a_fingerprint_is_of_the_declaration_and_not_of_a_version_its_text_or_its_delays() -> None:
    model = cast("ReadModel", models.Everything)
    for same in (
        model.at_version(2, model.view),
        replace(model, description="other", pooling_delay_s=9, max_lag_s=9),
    ):
        assert same.fingerprint == model.fingerprint
    for other in (
        replace(model, view="other"),
        replace(model, columns={"n": count()}),
        replace(model, events=("made",)),
        replace(model, deletes=("broken",)),
    ):
        assert other.fingerprint != model.fingerprint
