"""Read models as people look at them.

The rows of one stream (`stream_rows`), where columns come from (`lineage`), names that the store does not know
(`known_names`).
"""
