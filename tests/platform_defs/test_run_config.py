"""A run's config sets no connection, no Spark setting and no folder, and reads no environment."""

from pathlib import Path

import dagster as dg
import pytest

from millrace.assets.declarations import Declarations, declared
from millrace.platform_defs.loading import build_defs
from millrace.settings import Settings

ORDERS = declared("millrace.examples.shop", ["read_models"]).models["orders"]
SECRET = "hunter2-of-this-test"
WITHOUT_FIELDS = ("postgres", "spark", "io_manager")


@pytest.fixture
def defs(tmp_path: Path) -> dg.Definitions:
    return build_defs(declarations=Declarations(models={"orders": ORDERS}), settings=Settings(home=tmp_path))


GIVEN: tuple[dict[str, object], ...] = (
    {"postgres": {"config": {"dsn": {"env": "A_SECRET"}}}},
    {"postgres": {"config": {"dsn": "postgresql://elsewhere/x"}}},
    {"spark": {"config": {"spark_config": {"spark.remote": "sc://elsewhere"}}}},
    {"spark": {"config": {"spark_config": {"spark.driver.extraJavaOptions": "-XX:OnOutOfMemoryError=touch /tmp/x"}}}},
    {"io_manager": {"config": {"base_dir": {"env": "A_SECRET"}}}},
)


def test_run_config_of_a_resource_is_refused_or_ignored(defs: dg.Definitions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", SECRET)
    job = defs.resolve_job_def("drain")
    for given in GIVEN:
        with pytest.raises(dg.DagsterInvalidConfigError, match="unexpected") as refused:
            dg.validate_run_config(job, {"resources": given})
        assert SECRET not in str(refused.value)
    # the archive folder is a value of ours, which run config does not change
    assert dg.validate_run_config(job, {"resources": {"archive_folder": {"config": {"env": "A_SECRET"}}}})


def test_no_resource_of_any_job_has_a_field_that_run_config_sets(defs: dg.Definitions) -> None:
    for job in defs.resolve_all_job_defs():
        for name in WITHOUT_FIELDS:
            if name in job.resource_defs:
                config = {"resources": {name: {"config": {"anything": 1}}}}
                with pytest.raises(dg.DagsterInvalidConfigError):
                    dg.validate_run_config(job, config)
