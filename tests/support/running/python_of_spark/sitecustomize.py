"""What each Python process of the tests' Spark does first; Python itself imports this module.

Spark puts archives before everything else: pyspark's sources, which each process would compile as it imports them, and
a jar of thousands of names. What is installed is the same, and compiled.

Workers are forked from a process that has imported what each of them needs. A worker whose task failed is not used
again. The next one imports pandas and Arrow anew, which takes longer than the task, and tests let many tasks fail.
Millrace itself each worker imports by itself: a session brings it along.
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
# a worker that gets another file of a session reads each archive once more that was found so far
sys.path_importer_cache.clear()
