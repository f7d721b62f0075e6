"""Who waits for whom, as a picture for a notebook and as text for everything else."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

_ROW, _TOP, _LEFT, _RIGHT, _WIDTH = 34, 34, 270, 420, 500  # user units of the SVG


class Stop(NamedTuple):
    """What a rank is doing, and the ranks that it waits for."""

    doing: str
    waits_for: Sequence[int]


class WaitsFor:
    """An arrow from each rank that waits to each rank that it waits for. The same ranks give the same picture."""

    def __init__(self, stops: Mapping[int, Stop]) -> None:
        self.stops = dict(sorted(stops.items()))

    def __repr__(self) -> str:
        """A line a rank: `rank 0, waiting in all_gather #17 -> rank 2`."""
        return "\n".join(
            f"rank {rank}, {stop.doing}" + (f" -> {_names(stop.waits_for)}" if stop.waits_for else "")
            for rank, stop in self.stops.items()
        )

    def _repr_svg_(self) -> str:
        """Left what each rank does, right the ranks again; an arrow means `waits for`."""
        rows = {rank: _TOP + _ROW * index for index, rank in enumerate(self.stops)}
        awaited = {peer for stop in self.stops.values() for peer in stop.waits_for}
        parts = [_text(10, 16, "what each rank does"), _text(_RIGHT + 8, 16, "waits for")]
        for rank, stop in self.stops.items():
            middle = rows[rank] + 12
            parts += [_box(10, rows[rank], _LEFT - 10, bool(stop.waits_for)), _text(18, middle + 5, _short(rank, stop))]
            if rank in awaited:
                parts += [_box(_RIGHT, rows[rank], 70, False), _text(_RIGHT + 10, middle + 5, f"rank {rank}")]
            parts += [_arrow(middle, rows[peer] + 12) for peer in stop.waits_for if peer in rows]
        height = _TOP + _ROW * len(rows)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" role="img" font-family="sans-serif" font-size="13">'
            f"<title>{escape(repr(self))}</title>"
            # A light background, so that it is readable in a dark theme, too.
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>{_HEAD}{"".join(parts)}</svg>'
        )


_HEAD = (
    '<defs><marker id="waits" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#b04a00"/></marker></defs>'
)


def _box(x: int, y: int, width: int, waits: bool) -> str:
    style = 'fill="#fff1e5" stroke="#b04a00" stroke-dasharray="5 3"' if waits else 'fill="#eef3f8" stroke="#44546a"'
    return f'<rect x="{x}" y="{y}" width="{width}" height="24" rx="4" {style}/>'


def _arrow(start: int, end: int) -> str:
    return (
        f'<path d="M{_LEFT} {start}L{_RIGHT - 2} {end}" stroke="#b04a00" stroke-width="1.5" marker-end="url(#waits)"/>'
    )


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}" fill="#1c2733">{escape(text)}</text>'


def _short(rank: int, stop: Stop) -> str:
    text = f"rank {rank}: {stop.doing}"
    return text if len(text) <= 40 else text[:39] + "…"


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
