"""Read models as people look at them: the rows of one stream (`stream_rows`), where columns come from (`lineage`)."""
