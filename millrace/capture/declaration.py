"""What a user writes: the tables of a source database; their changes become events.

Not here: what the source says to a declaration (`source.readiness`).
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millrace.errors import InvalidCapture, Malformed
from millrace.labels import labels_fault
from millrace.personal.declaration import Personal, subject_of

ACTIONS = ("insert", "update", "delete", "truncate")
# the shortest key for hashes
_KEY_BYTES = 16
# The names of slots and publications contain it; they may have 63 bytes at most.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


def table_name(schema: str, table: str) -> str:
    """Write a table as `<schema>.<table>`, each table differently: a part with a dot or a quote is quoted."""
    return ".".join(
        '"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part for part in (schema, table)
    )


@dataclass(frozen=True)
class CapturedTable:
    """A table of the source.

    Attributes:
        table: Its name.
        schema: Its schema.
        columns: The captured columns, those of its key among them; None for all, also those that are added later.
        where: The condition on captured rows, as in `create publication`; None for all rows. A row that begins to meet
            it is an insert; a row that ceases to meet it is a delete.
        key: The columns that identify a row of a table with neither a primary key nor an index as its replica identity.
            `()` if no columns do; the capture's actions are then inserts (and truncates) only, each inserted row has a
            stream of its own, and earlier rows are not read.
        decider: The decider of its events; None for `table:<schema>.<table>`.
        mask: Columns with values that stay at the source: the store gets `***` for each value that is not null.
        hash: Columns of which the store gets the HMAC-SHA-256 of each value's text, in 64 hexadecimal digits. Equal
            values have equal hashes; without the key, a hash does not tell its value. Null stays null.
        hash_key: A function that returns the key of the hashes, at least 16 bytes; called when it is needed.
        personal: Columns that the store gets sealed, each with the column of the id of its person: `{"email": "id"}`.
            The person is `<table>:<id>`, or of another kind: `{"email": Personal(of="owner", kind="customer")}`.
    """

    table: str
    schema: str = "public"
    columns: tuple[str, ...] | None = None
    where: str | None = None
    key: tuple[str, ...] | None = None
    decider: str | None = None
    mask: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()
    hash_key: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    personal: Mapping[str, str | Personal] | None = field(default=None, hash=False)

    @property
    def name(self) -> str:
        """The table as `table_name` writes it."""
        return table_name(self.schema, self.table)

    @property
    def keyless(self) -> bool:
        """Whether no columns identify its rows: then their positions in the log do."""
        return self.key == ()

    @property
    def stream_decider(self) -> str:
        """The decider of its events."""
        return self.decider if self.decider is not None else f"table:{self.name}"

    @property
    def hidden(self) -> tuple[str, ...]:
        """The columns with values that the store never gets as they are."""
        return (*self.mask, *self.hash, *(self.personal or ()))

    @property
    def people(self) -> dict[str, Personal]:
        """The personal columns, each with its person's column and kind."""
        return {
            name: of if isinstance(of, Personal) else Personal(of, self.table)
            for name, of in (self.personal or {}).items()
        }

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns without which it cannot be told what to hide."""
        return (*self.hidden, *(each.of for each in self.people.values()))

    def secret(self) -> bytes:
        """Return the key of the hashes.

        Raises:
            InvalidCapture: There is none, or too short a one.
        """
        try:
            key = (self.hash_key or str)().encode()
        except Exception as missing:
            # any error of the user's function, or an attribute that None lacks
            raise InvalidCapture(f"table {self.name}: hash_key returns no key: {missing!r}") from missing
        if len(key) < _KEY_BYTES:
            raise InvalidCapture(
                f"table {self.name}: hash_key returns {len(key)} bytes; at least {_KEY_BYTES} are needed, such as"
                " python -c 'import secrets; print(secrets.token_hex())' prints"
            )
        return key


@dataclass(frozen=True)
class Capture:
    """A declared capture: one source database, one slot, one publication.

    Attributes:
        name: Its name.
        source: A function that returns the source's connection string; called when a connection is opened.
        tables: The captured tables.
        patterns: Names of more tables, such as `public.*`: `*` stands for any text, `?` for any character. A table that
            matches is captured from the next run on, with every column and row; a table of `tables` as declared there.
        exclude: Names of tables that are not captured although they match, such as `public.audit_*`.
        actions: The captured changes, the same for all its tables.
        keep_days: How long `wal_events` keeps a change that became an event, in days.
        max_lag_s: How long a change may wait to become an event, in seconds, before an operator is told.
        max_retained_bytes: How much WAL the source may keep for the slot before an operator is told.
        follows: Whether a run of Dagster captures until it is terminated. Else it ends after a while without changes.
        owners: The owners that Dagster shows of its source's tables: email addresses, and `team:` with a name.
        tags: The tags that Dagster shows of them.
    """

    name: str
    source: Callable[[], str]
    tables: tuple[CapturedTable, ...] = ()
    actions: tuple[str, ...] = ACTIONS
    keep_days: float = 7
    max_lag_s: int = 60
    max_retained_bytes: int = 1_000_000_000
    follows: bool = False
    patterns: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a declaration that cannot work.

        Raises:
            InvalidCapture: It is misnamed, captures nothing, or captures something twice.
        """
        if not _NAME.fullmatch(self.name):
            raise InvalidCapture(f"capture {self.name!r}: a name has 1 to 31 of a-z, 0-9 and _, a letter first")
        if fault := labels_fault(self.owners, self.tags):
            raise InvalidCapture(f"capture {self.name}: {fault}")
        self._check_patterns()
        if unknown := [action for action in self.actions if action not in ACTIONS]:
            raise InvalidCapture(f"capture {self.name}: actions are {', '.join(ACTIONS)}; not {', '.join(unknown)}")
        if not self.actions:
            raise InvalidCapture(f"capture {self.name}: it has no action; allowed are {', '.join(ACTIONS)}")
        for what, names in (
            ("table", [table.name for table in self.tables]),
            ("decider", [table.stream_decider for table in self.tables]),
        ):
            if twice := {name for name, number in Counter(names).items() if number > 1}:
                raise InvalidCapture(f"capture {self.name}: {what} {', '.join(sorted(twice))} is declared twice")
        for table in self.tables:
            if table.columns == ():
                raise InvalidCapture(f"capture {self.name}: table {table.name}: columns are None or not empty")
            if table.keyless and (names := sorted({"update", "delete"} & set(self.actions))):
                raise InvalidCapture(
                    f"capture {self.name}: table {table.name}: key=() says that nothing names its rows, so there is no"
                    f" telling which one a row's {' or '.join(names)} concerns: declare it in a capture with"
                    ' actions=("insert", "truncate"), or state key'
                )
            self._check_hidden(table)

    def _check_patterns(self) -> None:
        if isinstance(self.patterns, str) or isinstance(self.exclude, str):
            raise InvalidCapture(
                f'capture {self.name}: patterns and exclude are tuples, such as patterns=("public.*",)'
            )
        if not self.tables and not self.patterns:
            raise InvalidCapture(f"capture {self.name}: it has no table, and no pattern of tables")
        if unqualified := [name for name in (*self.patterns, *self.exclude) if "." not in name]:
            raise InvalidCapture(
                f"capture {self.name}: pattern {', '.join(unqualified)} has no schema: write such as public.*"
            )
        if self.exclude and not self.patterns:
            raise InvalidCapture(f"capture {self.name}: exclude is stated with patterns, which it is an exception of")

    def _check_hidden(self, table: CapturedTable) -> None:
        what = f"capture {self.name}: table {table.name}"
        if isinstance(table.mask, str) or isinstance(table.hash, str):
            raise InvalidCapture(f'{what}: mask and hash are tuples of columns, such as mask=("iban",)')
        if twice := sorted({name for name in table.hidden if table.hidden.count(name) > 1}):
            raise InvalidCapture(f"{what}: {', '.join(twice)} is stated twice in mask, hash and personal")
        if keys := [name for name in table.hidden if name in (table.key or ())]:
            raise InvalidCapture(
                f"{what}: {', '.join(keys)} belongs to its key, which is neither masked nor hashed nor sealed"
            )
        if unread := [name for name in table.needed if table.columns is not None and name not in table.columns]:
            raise InvalidCapture(f"{what}: columns leave out {', '.join(unread)}, which mask, hash or personal has")
        if people := sorted({each.of for each in table.people.values()} & {*table.hidden}):
            raise InvalidCapture(f"{what}: {', '.join(people)} says whose a personal column is, so it is not hidden")
        for each in table.people.values():
            try:
                subject_of(each.kind, 1)
            except Malformed as error:
                raise InvalidCapture(
                    f"{what}: {each.kind!r} is no kind of people: it is empty, or has @ or a blank"
                ) from error
        if bool(table.hash) != (table.hash_key is not None):
            raise InvalidCapture(f"{what}: hash and hash_key are stated together, or none of them")
