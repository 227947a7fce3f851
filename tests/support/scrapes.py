"""Scraping as Prometheus does."""

from collections.abc import Mapping

import requests
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.support.patience import patience

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(port: int) -> Samples:
    answer = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=patience())
    assert answer.status_code == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(answer.text)
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float:
    """Return the only sample of a metric with these labels among its own."""
    (found,) = [n for (other, has), n in samples.items() if other == name and labels.items() <= dict(has).items()]
    return found
