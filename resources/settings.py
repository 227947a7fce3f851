"""What a deployment can set, read from the environment when it is asked for, never at import.

Belongs here: names, defaults and meaning of settings. Not here: what is done with them.
"""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

PROJECT = Path(__file__).resolve().parent.parent


class Settings(BaseSettings):
    """The environment variables `MILLRACE_…` with their defaults."""

    model_config = SettingsConfigDict(env_prefix="MILLRACE_", extra="ignore")

    home: Path = Field(default=PROJECT / ".millrace", description="Where the local servers keep their data.")
    dsn: str | None = Field(default=None, description="The event store; none means the embedded Postgres.")
    log_partitions: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Log partitions of a new database; fixed once the database exists.",
    )
    port: int = Field(default=3000, ge=1, le=65535, description="The Dagster UI's port on 127.0.0.1.")
    simulate: bool = Field(default=True, description="Whether the example shop is simulated in the embedded Postgres.")
    crm_dsn: str | None = Field(
        default=None, description="The example's customer database; none means the one beside the embedded event store."
    )
    archive_dir: Path | None = Field(default=None, description="The folder of the archive; none means in the home.")

    @property
    def archive_folder(self) -> Path:
        """Where the archive is."""
        return (self.archive_dir or self.home / "archive").expanduser().resolve()
