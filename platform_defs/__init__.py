"""What Dagster loads, and the command line: definitions, sensors, jobs, schedules, storage. No SQL, no Spark plans."""
