"""What is started: what Dagster loads (`definitions` and the nouns beside it), the command line, the local platform.

Belongs here: jobs, schedules, sensors, checks, storage. Not here: assets (`millrace.assets`), the work
(`millrace.resources`).
"""
