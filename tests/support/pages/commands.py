"""The commands of a command line, as a user types them."""

import typer
from typer.core import TyperGroup


def commands(app: typer.Typer) -> set[str]:
    """Return all commands; a command of a group has the group's name in front."""
    return set(_below(typer.main.get_group(app)))


def _below(group: TyperGroup) -> list[str]:
    return [
        words
        for name, command in group.commands.items()
        for words in ([f"{name} {each}" for each in _below(command)] if isinstance(command, TyperGroup) else [name])
    ]
