"""Change capture: the changes of other databases' tables become events.

`declaration` is what a user writes, `drain` the loop, `store` the calls of `sql/functions/capture`. `source` asks the
captured database, `decoding` is what its messages mean.
"""
