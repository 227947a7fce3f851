"""Where Dagster keeps the outputs of steps: a folder of its instance."""

import dagster as dg


class InstanceFolder(dg.ConfigurableIOManagerFactory[dg.IOManager]):
    """Dagster's own files, in Dagster's own folder; it has no field, because a field would be run config."""

    def create_io_manager(self, context: dg.InitResourceContext) -> dg.IOManager:
        """Make the manager that writes below the folder of the instance."""
        return dg.FilesystemIOManager().create_io_manager(context)
