"""What writes to the terminal: nothing that somebody else wrote makes it do something."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from millrace.redact import printable


class Screen(Console):
    """A console that shows a text as it is, but for control characters: those are replacement characters.

    Brackets and colons are no markup to it, whatever names are in a text: colours are given as `Text`.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of a Console
        super().__init__(**options, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Make what is written of something that is printed."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
