"""Python workers of the tests' Spark, forked from a process that has imported what each of them needs.

A worker whose task failed is not used again. The next one imports pandas and Arrow anew, which takes longer than the
task, and tests let many tasks fail. Millrace itself each worker imports by itself: a session brings it along.
"""

import sys

import adbc_driver_manager
import adbc_driver_postgresql
import pandas  # type: ignore[import-untyped]
import psycopg
import pyarrow
import pydantic_settings
import pyspark.sql.datasource
import pyspark.sql.pandas.serializers
import pyspark.sql.worker.create_data_source
import pyspark.sql.worker.lookup_data_sources
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker
from pyspark.daemon import manager

# named for a linter: a fork needs them in memory, nobody here calls them
NEEDED = (adbc_driver_manager, adbc_driver_postgresql, pandas, psycopg, pyarrow, pydantic_settings, pyspark)

if __name__ == "__main__":
    # a worker that gets another file of a session reads each archive once more for each package found there so far
    sys.path_importer_cache.clear()
    manager()
