"""Change capture as assets: each declared capture as Dagster shows and runs it (`asset`).

Declarations are in a user's own package, with the words of `millrace`; `millrace.assets.declarations` finds them.
"""
