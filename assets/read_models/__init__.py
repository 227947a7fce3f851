"""Read models as assets: each declared one as Dagster shows and rebuilds it (`asset`).

Declarations are in a user's own package, with the words of `millrace`; `millrace.assets.declarations` finds them.
"""
