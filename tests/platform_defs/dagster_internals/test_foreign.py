"""Which instance of Dagster counts as foreign; `processes/test_dagster.py` tests what is off in it."""

from pathlib import Path

import pytest

from millrace.platform_defs.dagster_internals.foreign import is_foreign
from tests.support.project import PROJECT

OURS = (PROJECT / "platform_defs" / "dagster.yaml").read_text()
THEIRS = "telemetry: {enabled: false}\n"


@pytest.mark.parametrize(
    ("is_dev", "text", "foreign"),
    [(True, None, True), (True, THEIRS, True), (True, OURS, False), (False, None, False), (False, THEIRS, False)],
)
def test_only_dg_dev_without_our_dagster_yaml_is_foreign(
    is_dev: bool, text: str | None, foreign: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_IS_DEV_CLI", raising=False)
    if is_dev:
        monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    if text is not None:
        (tmp_path / "dagster.yaml").write_text(text)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert is_foreign() is foreign
    # without DAGSTER_HOME Dagster takes the file of the current folder
    monkeypatch.delenv("DAGSTER_HOME")
    monkeypatch.chdir(tmp_path)
    assert is_foreign() is foreign
