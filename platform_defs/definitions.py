"""What Dagster loads: the definitions of the package that the settings name.

Belongs here: nothing but them. Not here: making them (`loading`).
"""

from millrace.platform_defs.loading import build_defs

defs = build_defs()
