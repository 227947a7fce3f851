"""Writes to the terminal; texts of others cannot control it."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from millrace.redact import printable


class Screen(Console):
    """A console that shows a text unchanged, except that it replaces control characters.

    Brackets and colons in a text are not markup: pass colours as `Text`.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of a Console
        super().__init__(**options, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object without control characters."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
