"""The module that Dagster loads: the definitions of the package that the settings name."""

import os

from millrace.assets.declarations import InvalidDeclarations, declared
from millrace.platform_defs.dagster_internals.foreign import is_foreign, switch_off
from millrace.platform_defs.loading import loadable
from millrace.settings import Settings

settings = Settings()
found, defs = loadable(declared(settings.declared_package), settings)
# Dagster sets it where it only checks: there a file that fails is an error; elsewhere it costs itself alone
if found.faults and os.getenv("DAGSTER_IS_DEFS_VALIDATION_CLI"):
    raise InvalidDeclarations("Files of declarations fail to load.", detail="\n".join(map(str, found.faults)))
if is_foreign():
    switch_off(defs)
