"""`millrace push-secret`: a secret in a file that only its maker reads, and in no output."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.platform_defs.cli import app
from millrace.resources.errors import MillraceError, UnknownView
from millrace.resources.event_store import EventStore
from millrace.resources.signing import fault_of, made_secret
from millrace.resources.subscriptions.store import PushStore

RUNNER = CliRunner()


@pytest.fixture
def pushes(store: EventStore) -> PushStore:
    store.register_view("hook", "-infinity")
    return PushStore(store.connection)


def millrace(dsn: str, *arguments: str | Path) -> str:
    result = RUNNER.invoke(app, ["push-secret", *map(str, arguments), "--dsn", dsn], env={"COLUMNS": "250"})
    if isinstance(result.exception, MillraceError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_secret_is_made_in_a_file_of_ones_own_and_set(pushes: PushStore, dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "hook.secret"
    said = millrace(dsn, "hook", file)
    secret = file.read_text().strip()
    assert fault_of(secret) is None
    assert file.stat().st_mode & 0o777 == 0o600
    assert pushes.push_secrets("hook") == [secret]
    assert secret not in said
    assert str(file) in said


def test_again_with_the_same_file_nothing_changes_and_with_another_it_rotates(
    pushes: PushStore, dsn: str, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for file in (first, first, second):
        millrace(dsn, "hook", file)
    assert pushes.push_secrets("hook") == [second.read_text().strip(), first.read_text().strip()]
    millrace(dsn, "hook", tmp_path / "third", "--keep-s", "0")
    assert len(pushes.push_secrets("hook")) == 1


def test_a_secret_of_ones_own_is_taken(pushes: PushStore, dsn: str, tmp_path: Path) -> None:
    own = made_secret()
    (tmp_path / "own").write_text(own)
    millrace(dsn, "hook", tmp_path / "own")
    assert pushes.push_secrets("hook") == [own]


def test_what_is_no_secret_is_refused_and_stays(pushes: PushStore, dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("do not lose this")
    with pytest.raises(MillraceError, match=r"notes holds does not begin with whsec_\."):
        millrace(dsn, "hook", file)
    assert file.read_text() == "do not lose this"
    assert pushes.push_secrets("hook") == []


def test_it_is_removed(pushes: PushStore, dsn: str, tmp_path: Path) -> None:
    millrace(dsn, "hook", tmp_path / "secret")
    assert "not signed any more" in millrace(dsn, "hook", "--remove", "--reason", "no receiver")
    assert pushes.push_secrets("hook") == []


@pytest.mark.usefixtures("pushes")
def test_an_unknown_view_leaves_no_file(dsn: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownView):
        millrace(dsn, "hok", tmp_path / "secret")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("pushes")
def test_a_folder_that_is_not_there_is_said(dsn: str, tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="cannot be made: No such file or directory"):
        millrace(dsn, "hook", tmp_path / "nowhere" / "secret")


@pytest.mark.usefixtures("pushes")
def test_a_file_or_its_removal_is_asked_for(dsn: str, tmp_path: Path) -> None:
    for arguments in (("hook",), ("hook", str(tmp_path / "secret"), "--remove")):
        with pytest.raises(MillraceError, match="Name a file for the secret, or say --remove"):
            millrace(dsn, *arguments)
