"""Read models as assets: what Dagster shows of each declared one, and how it is rebuilt (`asset`).

Declarations are in a user's own package, with the words of `millrace`; `millrace.assets.declarations` finds them.
"""
