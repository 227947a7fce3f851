"""Settings of a deployment: each wrong value is reported in a sentence with the setting's name, without secrets."""

from collections.abc import Callable

import psycopg
import pytest

from millrace.assets.declarations import declared
from millrace.errors import MillraceError
from millrace.operations.alerts.receiver import alert_settings
from millrace.settings import Settings
from millrace.streams.app import serving_streams
from millrace.streams.followers import Followers

Use = Callable[[Settings], object]
NUMBERS = ("many", "0", "1.5", "")
SECONDS = ("soon", "0", "inf", "nan")
WHSEC = "whsec_" + "A" * 32


def alerts(settings: Settings) -> object:
    """Return the alerts' receivers; with an invalid address of the UI they say so, and have no links."""
    found = alert_settings(settings)
    assert found is not None
    if found.warnings:
        raise MillraceError(found.warnings[0])
    return found


def serve(settings: Settings) -> object:
    """Listen for readers."""
    with serving_streams(Followers(""), settings.streams_host, settings.streams_port) as port:
        return port


# a setting that is any text reports its fault at its first use
WRONG: dict[str, tuple[tuple[str, ...], Use | None]] = {
    "home": (("~nobody-of-this-name/x",), None),
    "dsn": (("nonsense", "postgresql://u:hunter2 secret@[/x"), lambda settings: psycopg.connect(settings.dsn or "")),
    "declarations": (("no such package", "..", "1/2"), lambda its: declared(its.declared_package, ["commands"])),
    "log_partitions": ((*NUMBERS, "1025"), None),
    "port": ((*NUMBERS, "65536"), None),
    "postgres_port": ((*NUMBERS, "65536"), None),
    "metrics_port": (("many", "-1", "1.5", "65536"), None),
    "streams_host": (("no.such.host.invalid",), serve),
    "streams_port": (("many", "-1", "1.5", "65536"), None),
    "ui_hosts": (("https://proxy.example.com", "a/b"), None),
    "ui_token": (("hunter2", "hunter2hunter2h"), None),
    "push_allow": (("10.0.0.0/99", "http://host", "host:80"), None),
    "alert_url": (("hunter2", "ftp://u:hunter2@host/"), alerts),
    "alert_secret": (("hunter2", "whsec_hunter2"), alerts),
    "alert_format": (("Slack!", "json"), alerts),
    "ui_url": (("nowhere", "ftp://host"), alerts),
    "cores": (NUMBERS, None),
    "build_timeout_s": (SECONDS, None),
    "code_url": (("nowhere", "ftp://host"), None),
    "archive_dir": (("~nobody-of-this-name/x",), None),
    "keys": (("~nobody-of-this-name/x",), None),
}


def test_every_setting_has_wrong_values_here() -> None:
    assert set(WRONG) == set(Settings.model_fields)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (values, _) in WRONG.items() for value in values])
def test_a_wrong_value_is_told_without_secrets(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other, usable in {"ALERT_URL": "https://alerts.example.com/x", "ALERT_SECRET": WHSEC}.items():
        monkeypatch.setenv(f"MILLRACE_{other}", usable)
    use = WRONG[name][1]
    monkeypatch.setenv(f"MILLRACE_{name.upper()}", value)
    with pytest.raises((MillraceError, psycopg.Error)) as refused:
        (use or str)(Settings())
    said = str(refused.value)
    assert name == "dsn" or "hunter2" not in said
    if use is None:
        shown = "as it is" if name == "ui_token" else repr(value)
        assert said.startswith(f"MILLRACE_{name.upper()} cannot be {shown}: ")
