"""`millrace streams token`: made for a login, shown once, listed without its secret, revoked."""

import pytest

from millrace.errors import Malformed, MillraceError
from millrace.event_store.platform import PlatformStore
from millrace.streams.tokens import TOKEN, TokenStore, hash_of
from tests.support.command_line import cells, millrace, parsed
from tests.support.factories import value
from tests.support.logins import logins


def test_a_token_is_shown_once_listed_and_revoked(store: PlatformStore, dsn: str) -> None:
    with logins(store.connection) as login:
        user = login().info.user
        said = millrace("streams", "token", "add", user, "--name", "the shop's pages", "--days", 30, dsn=dsn)
        secret, rest = said.split("\n", 1)
        assert TOKEN.fullmatch(secret)
        assert f"It is token 1, and is not shown again. It reads as {user} for 30 days." in rest
        stored = value(store.connection, "select hash from event_store.stream_tokens")
        assert stored == hash_of(secret)
        listed = millrace("streams", "token", "list", dsn=dsn)
        ((number, name, login_, *_, fault),) = cells(listed)
        assert (number, name, login_, fault) == ("1", "the shop's pages", user, "")
        assert secret not in listed
        assert "Token 1 is revoked." in millrace("streams", "token", "revoke", 1, "--reason", "a test", dsn=dsn)
        (token,) = parsed(millrace("streams", "token", "list", "--json", dsn=dsn))
        assert token["fault"] == "It is revoked."
        with pytest.raises(MillraceError, match="There is no good token 1"):
            millrace("streams", "token", "revoke", 1, dsn=dsn)


def test_a_login_that_does_more_than_reading_gets_no_token(store: PlatformStore, dsn: str) -> None:
    assert "There is no token." in millrace("streams", "token", "list", dsn=dsn)
    for login, fault in (("postgres", "is a superuser"), ("nobody_of_this_name", "is no login")):
        with pytest.raises(Malformed, match=fault):
            millrace("streams", "token", "add", login, dsn=dsn)
    assert TokenStore(store.connection).stream_tokens() == []
