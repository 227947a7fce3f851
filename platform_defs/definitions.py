"""The module that Dagster loads: the definitions of the package that the settings name."""

from millrace.platform_defs.loading import build_defs

defs = build_defs()
