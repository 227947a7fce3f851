"""What writes to the terminal: nothing that somebody else wrote makes it do something.

Belongs here: the console of every command. Not here: what is printed.
"""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from millrace.resources.showing import printable


class Screen(Console):
    """A console that shows control characters as replacement characters; colours and tables are its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Make what is written of something that is printed."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
