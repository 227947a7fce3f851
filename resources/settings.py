"""What a deployment can set, read from the environment when it is asked for, never at import.

Belongs here: names, defaults and meaning of settings. Not here: what is done with them; settings of what users declare.
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from millrace.resources.errors import MillraceError

# the folder that holds `sql/` and `platform_defs/`: a checkout, or the installed package
PROJECT = Path(__file__).resolve().parent.parent
# where pushes of the embedded store may go: receivers of this machine are those of whoever runs it
THIS_MACHINE = "127.0.0.0/8, ::1"
# what the embedded store shows if nobody says what to declare
EXAMPLE = "millrace.examples.shop"
PREFIX = "MILLRACE_"


# a name with or without a port, or an IPv6 address in brackets
_HOST = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d+)?", re.ASCII)


class InvalidSetting(MillraceError):
    """A setting has a value that it cannot have."""


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError("there is no such user's home") from error


def _hosts(text: str) -> str:
    for each in listed(text):
        if not _HOST.fullmatch(each):
            raise ValueError(f"{each!r} is neither host nor host:port")
    return text


def _networks(text: str) -> str:
    for each in listed(text):
        try:
            ipaddress.ip_network(each, strict=False)
        except ValueError:
            if ":" in each or not _HOST.fullmatch(each):
                raise ValueError(f"{each!r} is neither a network, such as 10.0.0.0/8, nor a host") from None
    return text


def listed(text: str | None) -> list[str]:
    """Return what a text lists, with commas or spaces between."""
    return (text or "").replace(",", " ").split()


class Settings(BaseSettings):
    """The environment variables `MILLRACE_…` with their defaults.

    Raises:
        InvalidSetting: One has a value that it cannot have; the text names it and what is allowed, and does not quote
            it where it may be a secret.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - what pydantic takes
        try:
            super().__init__(**values)
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False)[0]
            name = str(found["loc"][0])
            raise InvalidSetting(
                f"{PREFIX}{name.upper()} cannot be used: {found['msg'].removeprefix('Value error, ')}.",
                hint=f"What it is: {type(self).model_fields[name].description}",
            ) from None

    home: Annotated[Path, AfterValidator(_absolute)] = Field(
        default=Path(".millrace"),
        # the folder that is the current one when it is read
        validate_default=True,
        description="Where the local servers keep their data; by default in the current folder.",
    )
    dsn: str | None = Field(default=None, description="The event store; none means the embedded Postgres.")
    declarations: str | None = Field(
        default=None,
        description="The package of your read models, captures and reports; none means the example with the embedded"
        " Postgres, and nothing with a store of your own.",
    )
    log_partitions: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Log partitions of a new database; fixed once the database exists.",
    )
    port: int = Field(default=3000, ge=1, le=65535, description="The Dagster UI's port on 127.0.0.1.")
    postgres_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="The port on 127.0.0.1 at which the embedded Postgres lets the login millrace_reader in; none means"
        " nowhere.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="The port on 127.0.0.1 at which `millrace run sequencer`, also that of `millrace up`, answers GET /metrics;"
        " none means nowhere.",
    )
    ui_hosts: Annotated[str, AfterValidator(_hosts)] | None = Field(
        default=None,
        description="Names besides this machine's own under which the UI and metrics are reached, such as that of a proxy,"
        " with commas.",
    )
    ui_token: SecretStr | None = Field(
        default=None, min_length=16, description="What everybody must show to use the UI; none means nobody must."
    )
    push_allow: Annotated[str, AfterValidator(_networks)] | None = Field(
        default=None,
        description="Networks and hosts that pushes may go to besides public addresses, with commas.",
    )
    push_proxy: SecretStr | None = Field(
        default=None,
        description="The proxy, http://host:port, for pushes and alerts to public addresses; none means none, whatever"
        " HTTP_PROXY says.",
    )
    alert_url: SecretStr | None = Field(
        default=None,
        description="Where `millrace run sequencer`, also that of `millrace up`, sends alerts; none means nowhere.",
    )
    alert_secret: SecretStr | None = Field(
        default=None,
        description="What alerts are signed with: whsec_ and 24 to 64 bytes in base64; Slack needs none.",
    )
    alert_format: str = Field(
        default="standard", description="How alerts look: standard, as Standard Webhooks has it, or slack."
    )
    ui_url: str | None = Field(
        default=None,
        description="The UI's address as people reach it, for the links of alerts; none means its port on 127.0.0.1.",
    )
    fill_connections: int | None = Field(
        default=None,
        ge=1,
        description="On how many connections a rebuild fills its new tables at most; none means one for each core of this"
        " machine, four at most.",
    )
    staging_connections: int = Field(
        default=32, ge=1, description="On how many connections Spark's tasks write rows of a model at most."
    )
    live_readers: int = Field(
        default=64, ge=1, description="On how many connections Spark's tasks read events of a model at most."
    )
    spark_cores: int | None = Field(
        default=None,
        ge=1,
        description="How many cores a cluster gives a run; none means four of a standalone master, and elsewhere what Spark's"
        " scheduler says.",
    )
    batch_events: int | None = Field(
        default=None,
        ge=1,
        description="How many events a batch of a drain has at most; none means 250,000 for each core of a cluster, and"
        " 500,000 elsewhere.",
    )
    round_timeout_s: float = Field(
        default=60,
        gt=0,
        description="How many seconds a round of many views may take; then each view is tried alone, and one that takes"
        " as long leaves.",
    )
    build_timeout_s: float = Field(
        default=600,
        gt=0,
        description="How many seconds Spark may take for a batch of 500,000 events or fewer of one view; for more of"
        " them, as those of a rebuild, longer in proportion. A search for the streams that fail may take three times as"
        " long in all.",
    )
    archive_dir: Annotated[Path, AfterValidator(_absolute)] | None = Field(
        default=None, description="The folder of the archive; none means in the home."
    )

    @property
    def archive_folder(self) -> Path:
        """Where the archive is."""
        return (self.archive_dir or self.home / "archive").resolve()

    @property
    def listed_ui_hosts(self) -> list[str]:
        """The names in `ui_hosts`, one by one."""
        return listed(self.ui_hosts)

    @property
    def listed_push_allow(self) -> list[str]:
        """What is in `push_allow`, one by one."""
        return listed(self.push_allow)

    @property
    def push_proxy_url(self) -> str | None:
        """What is in `push_proxy`."""
        return (self.push_proxy.get_secret_value().strip() or None) if self.push_proxy else None

    @property
    def ui_address(self) -> str:
        """Where people find the UI."""
        return self.ui_url or f"http://127.0.0.1:{self.port}"

    @property
    def ui_secret(self) -> str | None:
        """The token of the UI as a text."""
        return None if self.ui_token is None else self.ui_token.get_secret_value()

    @property
    def declared_package(self) -> str | None:
        """The package to take declarations from, if any: an example is never built in a store of the user's own."""
        return self.declarations or (EXAMPLE if self.dsn is None else None)
