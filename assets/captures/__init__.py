"""Change capture as assets: what Dagster shows of each declared capture, and how it runs (`asset`).

Declarations are in a user's own package, with the words of `millrace`; `millrace.assets.declarations` finds them.
"""
