"""Draws docs/rooms.svg: the rooms on their floors, and what each imports of those below.

    .venv/bin/python -m scripts.draw_rooms    # after a change of the rooms or of what they import; a test says when

Belongs here: where a box stands on its floor. Not here: floors and imports, which tests/test_architecture.py knows.

An arrow is left out where a longer way of arrows says the same. The lowest floor is one bar: every room stands on it.
The examples are left out, too: they import what users do.
"""

from collections.abc import Iterable, Mapping

from tests.support.project import PROJECT
from tests.test_architecture import DAGSTER, LAYERS, graph, room_of

PICTURE = PROJECT / "docs" / "rooms.svg"
WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 800, 52, 136, 30
# the middle of each box, so that few arrows pass behind another one
MIDDLE = {
    "platform_defs": 600,
    "assets": 400,
    "resources": 280,
    "testing": 680,
    "testing_servers": 200,
    "operations": 400,
    "drain": 680,
    "commands": 80,
    "streams": 280,
    "read_models": 720,
    "backup": 440,
    "importer": 80,
    "archive": 440,
    "capture": 680,
    "sequencer": 560,
    "scheduled_events": 400,
    "reports": 720,
    "handlers": 80,
    "producers": 160,
    "event_schemas": 720,
    "spark": 360,
    "event_store": 280,
    "postgres": 240,
    "personal": 480,
}
# readable on white and on black
PLAIN, KNOWS_DAGSTER, LINE = "#2f6f9f", "#7a4fa3", "#8a8f98"
PICTURE_TEXT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>The rooms of Millrace on their floors; each imports only rooms below it</title>
<style>
text {{ font: 14px system-ui, sans-serif; text-anchor: middle; fill: #fff }}
path {{ stroke: {line}; stroke-width: 1.5 }}
</style>
<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L8 4L0 8z" fill="{line}"/>
</marker>
{shapes}
<text x="400" y="{bottom}" style="fill: {line}">An arrow says “imports”. Purple rooms know Dagster.</text>
</svg>
"""

Edges = Mapping[str, set[str]]


def drawn() -> str:
    """Return the picture as SVG, the same for the same imports."""
    _, *floors, ground = [list(dict.fromkeys(map(room_of, layer))) for layer in LAYERS]
    rooms = {room: depth for depth, floor in enumerate(floors) for room in floor}
    edges: dict[str, set[str]] = {room: set() for room in rooms}
    for module, others in graph().items():
        if room_of(module) in rooms:
            edges[room_of(module)] |= {room_of(other) for other in others} & rooms.keys() - {room_of(module)}
    row_of = rows(rooms, edges)
    height = (max(row_of.values()) + 2) * ROW + 40
    arrows = [arrow(room, other, row_of) for room, others in shortest(edges).items() for other in sorted(others)]
    boxes = [
        box(room, MIDDLE[room], row, BOX_WIDTH, KNOWS_DAGSTER if room in DAGSTER else PLAIN)
        for room, row in row_of.items()
    ]
    bar = box(" · ".join(ground), WIDTH // 2, max(row_of.values()) + 1, WIDTH - 20, PLAIN)
    shapes = "\n".join([*arrows, *boxes, bar])
    return PICTURE_TEXT.format(width=WIDTH, height=height, bottom=height - 14, line=LINE, shapes=shapes)


def rows(rooms: Mapping[str, int], edges: Edges) -> dict[str, int]:
    """Return the row of each room: one that imports another one of its floor stands a row above that one."""
    place = {room: (depth, -sum(rooms[other] == depth for other in edges[room])) for room, depth in rooms.items()}
    order = sorted(set(place.values()))
    return {room: order.index(place[room]) for room in rooms}


def shortest(edges: Edges) -> Edges:
    """Leave out what follows from other edges."""

    def below(names: Iterable[str]) -> set[str]:
        return {found for name in names for found in {name} | below(edges[name])}

    return {room: {one for one in others if one not in below(others - {one})} for room, others in edges.items()}


def arrow(room: str, other: str, row_of: Mapping[str, int]) -> str:
    """Draw an arrow from the lower edge of a box to the upper one of another."""
    start, end = row_of[room] * ROW + 10 + BOX_HEIGHT, row_of[other] * ROW + 10
    return f'<path marker-end="url(#tip)" d="M{MIDDLE[room]} {start}L{MIDDLE[other]} {end}"/>'


def box(text: str, middle: int, row: int, width: int, color: str) -> str:
    """Draw a box of a row, around its middle."""
    top = row * ROW + 10
    rectangle = (
        f'<rect x="{middle - width // 2}" y="{top}" width="{width}" height="{BOX_HEIGHT}" rx="5" fill="{color}"/>'
    )
    return f'{rectangle}\n<text x="{middle}" y="{top + 20}">{text}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawn())
