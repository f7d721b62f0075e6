"""A plot of lines on logarithmic axes as a small SVG: no libraries, and the same bytes for the same numbers."""

from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 70, 130, 40, 50
COLOURS = ("#0072b2", "#d55e00")  # Okabe and Ito: told apart by colour-blind eyes, too; one a stage
DASHES = ("", "8 3", "4 3", "1 3")

Points = list[tuple[float, float]]


def svg(title: str, across: str, up: str, lines: dict[str, Points]) -> str:
    """The picture: one line a name; names that begin alike, up to the first comma, have one colour.

    Args:
        title: above the plot.
        across: what the x axis shows, with its unit.
        up: what the y axis shows.
        lines: positive (x, y) by name.
    """
    x_axis = _Axis([x for points in lines.values() for x, _ in points], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([y for points in lines.values() for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, TOP - 18, title, size=14),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, across, anchor="middle"),
        _text(LEFT, TOP - 4, up, anchor="end"),
    ]
    for place, label in x_axis.ticks():
        parts.append(f'<path d="M{place} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(_text(place, HEIGHT - BOTTOM + 16, label, anchor="middle"))
    for place, label in y_axis.ticks():
        parts.append(f'<path d="M{LEFT} {place}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, place + 4, label, anchor="end"))
    stages = list(dict.fromkeys(name.partition(",")[0] for name in lines))
    seen = dict.fromkeys(stages, 0)
    for row, (name, points) in enumerate(lines.items()):
        stage = name.partition(",")[0]
        colour, dash = COLOURS[stages.index(stage) % len(COLOURS)], DASHES[seen[stage] % len(DASHES)]
        seen[stage] += 1
        parts += _line(name, [(x_axis.place(x), y_axis.place(y)) for x, y in points], colour, dash, TOP + 20 * row)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(name: str, places: Points, colour: str, dash: str, height: int) -> list[str]:
    """The line with its points, and its entry in the legend."""
    style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
    legend = WIDTH - RIGHT + 10
    return [
        f'<polyline points="{" ".join(f"{x},{y}" for x, y in places)}" {style}/>',
        *(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places),
        f'<path d="M{legend} {height + 6}h24" {style}/>',
        _text(legend + 30, height + 10, name),
    ]


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


class _Axis:
    """Whole powers of ten around the values, from pixel `begin` to pixel `end`."""

    def __init__(self, values: list[float], begin: int, end: int) -> None:
        logs = [log10(value) for value in values] or [0.0]
        self.low, self.begin, self.end = floor(min(logs)), begin, end
        self.high = max(ceil(max(logs)), self.low + 1)

    def place(self, value: float) -> float:
        """The pixel of a value."""
        return round(self.begin + (log10(value) - self.low) / (self.high - self.low) * (self.end - self.begin), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """A pixel and a label for each power of ten."""
        return [(self.place(10.0**power), f"{10.0**power:,.10g}") for power in range(self.low, self.high + 1)]
