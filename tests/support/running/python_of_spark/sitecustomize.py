"""Prepares each Python process of the tests' Spark; Python itself imports this module first.

Spark puts archives first on the path: pyspark's sources, which each process would compile on import, and a jar with
thousands of names. The installed packages are the same, and compiled.

Workers are forked from a process that has imported their common modules. A worker with a failed task is not reused. Its
successor would import pandas and Arrow again, which takes longer than the task, and in tests many tasks fail. Each
worker imports Millrace itself: a session ships it.
"""

import sys
from importlib import import_module

NEEDED = (
    "adbc_driver_manager", "adbc_driver_postgresql", "pandas", "psycopg", "pyarrow", "pydantic_settings",
    "pyspark.sql.datasource", "pyspark.sql.pandas.serializers", "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources", "pyspark.sql.worker.plan_data_source_read", "pyspark.worker",
)  # fmt: skip
sys.path[:] = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    for module in NEEDED:
        import_module(module)
# a worker that gets another file of a session rereads each archive found so far
sys.path_importer_cache.clear()
