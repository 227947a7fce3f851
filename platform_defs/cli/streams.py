"""The commands on tokens of streams, `millrace streams token …`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from millrace.errors import MillraceError
from millrace.platform_defs.cli.options import DsnOption, Reason, chosen_dsn
from millrace.platform_defs.cli.output import JsonOption, in_utc, print_json, table
from millrace.platform_defs.screen import Screen
from millrace.postgres.connecting import connect
from millrace.streams.tokens import TokenStore, hash_of, made_token

app = typer.Typer(no_args_is_help=True)
token = typer.Typer(no_args_is_help=True)
app.add_typer(token, name="token", help="Add, list or revoke tokens that read over HTTP.")

COLUMNS = ("token", "name", "login", "made", "expires", "last used", "gives nothing, as")


@token.command("add")
def add_command(
    login: Annotated[str, typer.Argument(help="The login with the rights that it gives; one that only reads.")],
    name: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="For how long it is good.")] = 90,
    dsn: DsnOption = None,
) -> None:
    """Make a token that reads over HTTP with the rights of a login, and show it this once."""
    made = made_token()
    with connect(chosen_dsn(dsn)) as connection:
        token_id = TokenStore(connection).add_stream_token(hash_of(made), login, name, days)
    # alone on the output: a script stores it
    typer.echo(made)
    typer.echo(f"It is token {token_id}, and is not shown again. It reads as {login} for {days} days.", err=True)


@token.command("list")
def list_command(as_json: JsonOption = False, dsn: DsnOption = None) -> None:
    """List the tokens: their logins, how long each is good, and when it was used."""
    with connect(chosen_dsn(dsn)) as connection:
        found = TokenStore(connection).stream_tokens()
    if as_json:
        for each in found:
            print_json(asdict(each))
    elif not found:
        Screen().print("There is no token.")
    else:
        rows = [
            (
                each.token_id, each.name, each.login, in_utc(each.made_at), in_utc(each.expires_at),
                each.last_used_at and in_utc(each.last_used_at), each.fault,
            )
            for each in found
        ]  # fmt: skip
        Screen().print(table("Tokens of streams", COLUMNS, rows))


@token.command("revoke")
def revoke_command(
    token_id: Annotated[int, typer.Argument(help="The token's number, as the list has it.", metavar="TOKEN")],
    reason: Reason = None,
    dsn: DsnOption = None,
) -> None:
    """End a token at once, with its sessions and connections."""
    with connect(chosen_dsn(dsn)) as connection:
        revoked = TokenStore(connection).revoke_stream_token(token_id, reason)
    if not revoked:
        raise MillraceError(f"There is no good token {token_id}.", hint="millrace streams token list shows all.")
    Screen().print(Text(f"Token {token_id} is revoked."))
