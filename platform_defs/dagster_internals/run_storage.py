"""Where Dagster keeps what a step returns: a folder of its instance."""

import dagster as dg


class InstanceFolder(dg.ConfigurableIOManagerFactory[dg.IOManager]):
    """Dagster's own files, in Dagster's own folder; without a field, for a field is run config."""

    def create_io_manager(self, context: dg.InitResourceContext) -> dg.IOManager:
        """Make the one that writes below the folder of the instance."""
        return dg.FilesystemIOManager().create_io_manager(context)
