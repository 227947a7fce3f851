"""Read models: their declarations, mergeable columns, functions, tables and versions."""
