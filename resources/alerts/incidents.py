"""What can be wrong, and the words for it: the one table of kinds, and what a source says that it found.

Belongs here: kinds, thresholds, titles, remedies. Not here: looking (`standing`, and Dagster's in
`millrace.platform_defs.alerts`), what is kept of it (`store`), how a message looks (`messages`).
"""

import hashlib
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import MappingProxyType

from millrace.resources.showing import masked, printable

# From when on something is wrong, as the rules in docs/monitoring/alerts.yml have it; times in seconds.
LATE_S = 300
SEQUENCER_IDLE_S = 30
SEQUENCER_HELD_S = 30
OLD_WRITER_S = 900
CAPTURE_IDLE_S = 900
DAEMON_IDLE_S = 300
QUEUED_S = 600
SENSOR_FAILURES = 5

# bytes of what is kept; a cause is the text of an error, and may be long
CAUSE_BYTES = 4000
SUBJECT_BYTES = 500


@dataclass(frozen=True)
class Kind:
    """A kind of incident.

    Attributes:
        severity: 'page' if somebody should come, 'ticket' if it can wait until the morning.
        wait_s: For how long it must be seen until somebody is told.
        one: The title of one incident; {subject} is what it is of.
        many: The title of several; {number} is how many.
        remedy: What an operator does; {subject} as a shell takes it.
    """

    severity: str
    wait_s: int
    one: str
    many: str
    remedy: str


KINDS = MappingProxyType(
    {
        "late": Kind(
            "ticket",
            120,
            "{subject} is late",
            "{number} read models and views are late",
            "`millrace status` shows how far it is behind. The ticks of the sensor `poll_read_models` say why "
            "no drain of a read model starts, those of `poll_views` why a view is not pushed.",
        ),
        "dead_letters": Kind(
            "ticket",
            0,
            "The view {subject} gave up a stream",
            "{number} views gave up streams",
            "`millrace dead-letters {subject} --show` says what failed. Repair the cause, then: millrace retry {subject}",
        ),
        "gap": Kind(
            "page",
            0,
            "The capture {subject} lacks changes",
            "{number} captures lack changes",
            "`millrace capture status` says what is missing; millrace capture restart {subject} --reason WHY reads all rows anew.",
        ),
        "capture_idle": Kind(
            "ticket",
            300,
            "The capture {subject} stores nothing",
            "{number} captures store nothing",
            "Its source keeps its log meanwhile. See `millrace capture status`, and the ticks of the sensor `poll_{subject}`.",
        ),
        "stopped_table": Kind(
            "ticket",
            300,
            "The capture {subject} has tables that it cannot capture",
            "{number} captures have tables that they cannot capture",
            "`millrace capture status` has the remedy. A table that is mended is captured by the next run, and read anew.",
        ),
        "quarantine": Kind(
            "ticket",
            0,
            "The capture {subject} has changes that are no events",
            "{number} captures have changes that are no events",
            "`millrace capture quarantined {subject}` says why. Repair the cause, then: millrace capture requeue {subject}",
        ),
        "slot": Kind(
            "page",
            0,
            "The slot of the capture {subject} is in trouble",
            "The slots of {number} captures are in trouble",
            "`millrace capture status` has the problem and its remedy. A slot that nobody reads fills its source's disk.",
        ),
        "overdue": Kind(
            "ticket",
            0,
            "The producer {subject} has a transaction past its deadline",
            "{number} producers have transactions past their deadlines",
            "Is `millrace sequence` running? Otherwise a session holds the producer: a client with an open transaction.",
        ),
        "log_held": Kind(
            "page",
            0,
            "An open transaction keeps everybody from sequencing",
            "{number} open transactions keep everybody from sequencing",
            "No view gets new events. `millrace status` names the process: end it where it runs, or by pg_terminate_backend.",
        ),
        "not_sequenced": Kind(
            "page",
            60,
            "Nobody gives events their positions",
            "Nobody gives events their positions",
            "Is `millrace sequence` running, and does its log say why it does not get on?",
        ),
        "old_writer": Kind(
            "ticket",
            0,
            "The transaction of {subject} has been open for long",
            "{number} transactions have been open for long",
            "Its events have no position until it ends, and what was replaced since cannot be removed. Let it end: by "
            "pg_terminate_backend, or one that was prepared by ROLLBACK PREPARED.",
        ),
        "run": Kind(
            "ticket",
            120,
            "The run {subject} failed",
            "{number} runs failed",
            "Its page in the UI has the cause and the log; run it again there once the cause is repaired.",
        ),
        "sensor": Kind(
            "ticket",
            0,
            "{subject} fails again and again",
            "{number} sensors and schedules fail again and again",
            "Its ticks in the UI, below Automation, have the error.",
        ),
        "location": Kind(
            "page",
            120,
            "The declarations in {subject} do not load",
            "The declarations in {number} code locations do not load",
            "Nothing of it is started meanwhile. The UI shows the error below Deployment; correct the declarations and "
            "reload them there. If it was taken away on purpose, this is over after a day.",
        ),
        "check": Kind(
            "ticket",
            0,
            "The check {subject} is breached",
            "{number} checks are breached",
            "The check in the UI has its figures; docs/operating.md says what helps.",
        ),
        "queue": Kind(
            "ticket",
            120,
            "Runs wait in Dagster's queue",
            "Runs wait in Dagster's queue",
            "Are runs at work that do not end? Terminate them in the UI, or let more run at once in dagster.yaml.",
        ),
        "daemon": Kind(
            "page",
            120,
            "Dagster's daemon is dead",
            "Dagster's daemon is dead",
            "Nothing is started meanwhile: no drain, no capture, no schedule. Start the service `daemon`; its log says why it ended.",
        ),
        "service": Kind(
            "page",
            120,
            "The service {subject} is not up",
            "{number} services are not up",
            "`millrace up` starts it again and again, and gives it longer each time. Its log says why it is not up.",
        ),
        "unreadable": Kind(
            "page",
            120,
            "What {subject} knows cannot be read",
            "{number} sources cannot be read",
            "Nobody sees what goes wrong there. Is its database up, and reachable from where `millrace sequence` runs?",
        ),
    }
)


@dataclass(frozen=True)
class Finding:
    """Something that a source sees to be wrong.

    Attributes:
        source: Who sees it.
        kind: One of `KINDS`.
        subject: What it is of.
        cause: What is seen; of a long error only the beginning is kept.
        page: Where the UI shows it, behind the UI's address; empty for nowhere.
    """

    source: str
    kind: str
    subject: str
    cause: str
    page: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others, as it is kept."""
        return self.kind, kept(self.subject, SUBJECT_BYTES)

    def fields(self) -> dict[str, object]:
        """Return it as `observe_incidents` takes it."""
        kind, (_, subject) = KINDS[self.kind], self.key
        return {
            **asdict(self),
            "subject": subject,
            # the text of an error may quote a connection string
            "cause": cut(clean(masked(self.cause)), CAUSE_BYTES) or title(self.kind, [subject]),
            "page": self.page if len(self.page.encode(errors="replace")) <= 1000 else "",
            "severity": kind.severity,
            "wait_s": kind.wait_s,
            # a command in it is for a shell, and whoever names a view chose the name
            "remedy": kind.remedy.format(subject=shlex.quote(subject)),
        }


def title(kind: str, subjects: Iterable[str]) -> str:
    """Say in a line what is wrong, with one subject or with several."""
    of = [*subjects]
    words = KINDS.get(kind)
    if words is None:
        # of another version of this code
        return f"{kind}: {', '.join(of)}"
    return words.one.format(subject=of[0]) if len(of) == 1 else words.many.format(number=len(of))


def kept(text: str, most: int) -> str:
    """Return a text that fits; two long ones that differ only at their ends stay two."""
    text = clean(text)
    if len(text.encode()) <= most:
        return text
    return f"{cut(text, most - 20)} {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def clean(text: str) -> str:
    """Return a text that Postgres stores and a terminal shows: no control characters, no halves of characters."""
    return printable(text.encode(errors="replace").decode()).strip()


def cut(text: str, most: int) -> str:
    """Return the beginning of a text, of so many bytes at most."""
    if len(text.encode()) <= most:
        return text
    return text.encode()[: most - 4].decode(errors="ignore") + " …"


def age(seconds: float) -> str:
    """Return an age in words that one reads at a glance."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
