"""The settings of a deployment, read from the environment when needed, never at import."""

import ipaddress
import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from millrace.errors import InvalidSetting

# the folder with the package's files, among them `sql/` and `platform_defs/`
PACKAGE = Path(__file__).resolve().parent
# where pushes of the embedded store may go: receivers on this machine belong to its operator
THIS_MACHINE = "127.0.0.0/8, ::1"
# the package that `millrace up` declares in a new home if no other one is named
EXAMPLE = "millrace.examples.shop"
# the file in a home with the name of the package that `millrace up` declared there
NOTE = "declarations"
# the folder in a home with the keys of people that `millrace up` made there
KEYS = "keys"
PREFIX = "MILLRACE_"
# the least number of characters in the UI's token
SHORTEST_TOKEN = 16
# the number of characters that an error quotes of an invalid value
QUOTED = 100


# a name with or without a port, or an IPv6 address in brackets
_HOST = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d+)?", re.ASCII)


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError("there is no such user's home") from error


def _token(token: SecretStr) -> SecretStr:
    if len(token) < SHORTEST_TOKEN:
        raise ValueError(f"it should have {SHORTEST_TOKEN} characters or more, not {len(token)}")
    return token


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
    """Return the items of a text, separated by commas or spaces."""
    return (text or "").replace(",", " ").split()


class Settings(BaseSettings):
    """The environment variables `MILLRACE_…` with their defaults.

    Raises:
        InvalidSetting: A variable has an invalid value; the text has its name, the value unless that may be a secret,
            and the allowed values.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - what pydantic takes
        try:
            super().__init__(**values)
        except ValidationError as error:
            found = error.errors(include_url=False)[0]
            name = str(found["loc"][0])
            field = type(self).model_fields[name]
            value = "as it is" if "SecretStr" in repr(field.annotation) else repr(str(found["input"])[:QUOTED])
            allowed = found["msg"].removeprefix("Value error, ").replace("Input should", "it should", 1)
            raise InvalidSetting(
                f"{PREFIX}{name.upper()} cannot be {value}: {allowed}.", hint=f"What it is: {field.description}"
            ) from None

    home: Annotated[Path, AfterValidator(_absolute)] = Field(
        default=Path(".millrace"),
        # the current folder at the time of reading
        validate_default=True,
        description="Where the local servers keep their data; by default in the current folder.",
    )
    dsn: str | None = Field(default=None, description="The event store; none means the embedded Postgres.")
    declarations: str | None = Field(
        default=None,
        description="The package of your read models, captures and reports; none means that of [tool.millrace] in the"
        " pyproject.toml above, or what `millrace up` declared in the home.",
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
    streams_host: str = Field(default="127.0.0.1", description="The address at which `millrace run streams` listens.")
    streams_port: int = Field(
        default=4437,
        ge=0,
        le=65535,
        description="The port at which `millrace run streams` listens; 0 for any free one.",
    )
    ui_hosts: Annotated[str, AfterValidator(_hosts)] | None = Field(
        default=None,
        description="Names under which the UI, metrics and streams are reached beside this machine's own, such as that of a"
        " proxy, with commas.",
    )
    ui_token: Annotated[SecretStr, AfterValidator(_token)] | None = Field(
        default=None, description="Token required for the UI; none means that no token is required."
    )
    push_allow: Annotated[str, AfterValidator(_networks)] | None = Field(
        default=None,
        description="Networks and hosts that pushes may go to, beside public addresses; with commas.",
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
    code_url: str | None = Field(
        default=None,
        pattern="^https?://",
        description="The page of your repository's files, such as https://example.com/us/platform/blob/main, for links in"
        " the UI; none means links to the files on this machine.",
    )
    cores: int | None = Field(
        default=None,
        ge=1,
        description="How many cores Spark gives a run. None means all of one machine, four of a standalone master, and on"
        " other clusters what the scheduler says.",
    )
    build_timeout_s: float = Field(
        default=600,
        gt=0,
        description="How many seconds Spark may take for a batch of 500,000 events or fewer of one view. A larger batch, as"
        " of a rebuild, may take longer in proportion, a search for the streams that fail three times as long in all, and a"
        " round of many views a tenth.",
    )
    archive_dir: Annotated[Path, AfterValidator(_absolute)] | None = Field(
        default=None, description="The folder of the archive; none means in the home."
    )
    keys: Annotated[Path, AfterValidator(_absolute)] | None = Field(
        default=None,
        description="The folder of the keys of personal data, for `millrace privacy`, captures, imports, handlers and"
        " pushes: outside of the database and its backups; none means that which `millrace up` made in the home of the"
        " embedded Postgres, if any.",
    )

    @model_validator(mode="after")
    def _keys_of_the_home(self) -> Self:
        if self.keys is None and self.dsn is None and (self.home / KEYS).is_dir():
            self.keys = self.home / KEYS
        return self

    @property
    def archive_folder(self) -> Path:
        """The folder of the archive."""
        return (self.archive_dir or self.home / "archive").resolve()

    @property
    def keys_folder(self) -> Path:
        """The folder of keys.

        Raises:
            InvalidSetting: None is named.
        """
        if self.keys is None:
            raise InvalidSetting(
                "MILLRACE_KEYS is not set.", hint="Name the folder of the keys of personal data in it."
            )
        return self.keys

    @property
    def listed_ui_hosts(self) -> list[str]:
        """The names in `ui_hosts`, as a list."""
        return listed(self.ui_hosts)

    @property
    def listed_push_allow(self) -> list[str]:
        """The networks and hosts in `push_allow`, as a list."""
        return listed(self.push_allow)

    @property
    def ui_address(self) -> str:
        """The address of the UI as people reach it."""
        return self.ui_url or f"http://127.0.0.1:{self.port}"

    @property
    def ui_secret(self) -> str | None:
        """The token of the UI as a text."""
        return None if self.ui_token is None else self.ui_token.get_secret_value()

    @property
    def declared_package(self) -> str | None:
        """The package of declarations, if any is named: here, in the home, or in the pyproject.toml above.

        Raises:
            InvalidSetting: Home and pyproject.toml name two packages, or the example would go into another one's store.
        """
        noted = None
        with suppress(OSError):
            noted = None if self.dsn else (self.home / NOTE).read_text(errors="replace").strip() or None
        if self.declarations:
            if self.declarations == EXAMPLE and noted not in {None, EXAMPLE}:
                raise InvalidSetting(
                    f"The store in {self.home} is that of the package {noted}, and the example would be built in it.",
                    hint=f"Unset {PREFIX}DECLARATIONS, or set {PREFIX}HOME to another folder for the example.",
                )
            return self.declarations
        project, named = _of_project(Path.cwd())
        if noted and named and noted != named:
            raise InvalidSetting(
                f"The store in {self.home} is that of the package {noted}, and {project} names {named}.",
                hint=f"Set {PREFIX}DECLARATIONS to the one that you mean, or {PREFIX}HOME to the home of the other one.",
            )
        return noted or named


def _of_project(folder: Path) -> tuple[Path, str | None]:
    """Return the nearest pyproject.toml above a folder with `declarations` in [tool.millrace], and that value."""
    for path in (above / "pyproject.toml" for above in (folder, *folder.parents)):
        try:
            named = tomllib.loads(path.read_text()).get("tool", {}).get("millrace", {}).get("declarations")
        except OSError:
            continue
        except (ValueError, AttributeError) as error:
            raise InvalidSetting(f"{path} cannot be read: {error}", hint="Correct the file.") from None
        if named is not None:
            if not isinstance(named, str):
                raise InvalidSetting(f"{path}: declarations in [tool.millrace] names no package: {named!r}.")
            return path, named
    return folder, None
