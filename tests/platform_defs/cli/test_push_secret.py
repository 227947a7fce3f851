"""`millrace view secret`: a secret in a file that only its maker reads, and in no output."""

from pathlib import Path

import pytest

from millrace.errors import MillraceError, UnknownView
from millrace.event_store.platform import PlatformStore
from millrace.handlers.store import PushStore
from millrace.signing import fault_of, made_secret
from tests.support.command_line import millrace


@pytest.fixture
def pushes(store: PlatformStore) -> PushStore:
    store.register_view("hook", "-infinity")
    return PushStore(store.connection)


def test_a_secret_is_made_rotated_and_removed(pushes: PushStore, dsn: str, tmp_path: Path) -> None:
    first, second, own = tmp_path / "first", tmp_path / "second", tmp_path / "own"
    said = millrace("view", "secret", "hook", first, dsn=dsn)
    secret = first.read_text().strip()
    assert fault_of(secret) is None
    assert first.stat().st_mode & 0o777 == 0o600
    assert pushes.push_secrets("hook") == [secret]
    assert secret not in said
    assert str(first) in said
    # a second call with the same file changes nothing
    for file in (first, second):
        millrace("view", "secret", "hook", file, dsn=dsn)
    assert pushes.push_secrets("hook") == [second.read_text().strip(), secret]
    own.write_text(made_secret())
    millrace("view", "secret", "hook", own, "--keep-s", "0", dsn=dsn)
    assert pushes.push_secrets("hook") == [own.read_text()]
    assert "not signed any more" in millrace("view", "secret", "hook", "--remove", "--reason", "no receiver", dsn=dsn)
    assert pushes.push_secrets("hook") == []


def test_what_cannot_be_done_is_refused_and_changes_nothing(pushes: PushStore, dsn: str, tmp_path: Path) -> None:
    notes, new = tmp_path / "notes", tmp_path / "secret"
    notes.write_text("do not lose this")
    for arguments, error, said in (
        (("hook", notes), MillraceError, r"notes holds does not begin with whsec_\."),
        (("hok", new), UnknownView, "not registered"),
        (("hook", tmp_path / "nowhere" / "secret"), MillraceError, "cannot be made: No such file or directory"),
        (("hook",), MillraceError, "Name a file for the secret, or say --remove"),
        (("hook", new, "--remove"), MillraceError, "Name a file for the secret, or say --remove"),
    ):
        with pytest.raises(error, match=said):
            millrace("view", "secret", *arguments, dsn=dsn)
    assert notes.read_text() == "do not lose this"
    assert list(tmp_path.iterdir()) == [notes]
    assert pushes.push_secrets("hook") == []
