"""Python workers of the tests' Spark, forked from a process that has imported what each of them needs.

A worker whose task failed is not used again. The next one imports pandas and Arrow anew, which takes longer than the
task, and tests let many tasks fail. Millrace itself each worker imports by itself: a session brings it along.
"""

import sys
from importlib import import_module

from pyspark.daemon import manager

NEEDED = (
    "adbc_driver_manager",
    "adbc_driver_postgresql",
    "pandas",
    "psycopg",
    "pyarrow",
    "pydantic_settings",
    "pyspark.sql.datasource",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
)

if __name__ == "__main__":
    for module in NEEDED:
        import_module(module)
    # a worker that gets another file of a session reads each archive once more for each package found there so far
    sys.path_importer_cache.clear()
    manager()
