"""Tables of plain values that look the same every time: in a terminal, in a notebook and in a stored output.

Not drawn by pandas, which is an extra and whose Styler writes random identifiers; `to_pandas` converts a table. Seconds
differ from run to run, so columns of time are shown only on request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import pandas as pd

Value = str | int | float | bool | None

TIME_SUFFIXES = ("seconds", "_ms", "_us", "_ns")
BYTE_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
WIDEST = 120  # characters; a wider table has its headings on two lines
NAMES = ("category", "term")  # columns whose values are names of ours
BAR = "rgba(128, 136, 150, 0.35)"  # seen on white and on black, and so is the number on it
SHOWN_ROWS = 60  # of a longer table, text and HTML leave out the middle; `rows` never does


class Table:
    """Rows of plain values, each a dict from column to value; columns are in the order of their first appearance.

    Whole numbers are shown with thousands separators, floats with one to three decimals, as many as their column needs,
    and None as "-". A row may lack a column. Underscores are shown as spaces in the names of columns, and in the
    columns `category` and `term`. `title` is shown above the table. The columns in `sizes` are bytes, shown with a unit
    and in three digits (MB is 1e6 bytes); in HTML the exact number is the cell's tooltip, and a bar behind it shows how
    much of the column's largest it is. Columns whose name ends in `seconds`, `_ms`, `_us` or `_ns` are shown only with
    `times=True`. `rows` and `to_pandas` always have every column, exactly. A slice of a table is a table.

    Raises TypeError for a value that is not a str, int, float, bool or None.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Value]],
        title: str | None = None,
        *,
        times: bool = False,
        sizes: Collection[str] = (),
    ) -> None:
        self.rows: list[dict[str, Value]] = [dict(row) for row in rows]
        self.title = title
        self.times = times
        self.sizes = frozenset(sizes)
        for name, value in (cell for row in self.rows for cell in row.items()):
            if not isinstance(value, (str, int, float, bool, type(None))):
                held = type(value).__name__
                raise TypeError(f"column {name!r} of a table holds a {held}; give it text, a number, a bool or None")

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are shown, left to right."""
        # A dict, not a set: it keeps the order.
        names = dict.fromkeys(name for row in self.rows for name in row)
        return [name for name in names if self.times or not name.endswith(TIME_SUFFIXES)]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Value]]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, Value]: ...
    @overload
    def __getitem__(self, index: slice) -> Table: ...
    def __getitem__(self, index: int | slice) -> dict[str, Value] | Table:
        if isinstance(index, slice):
            return Table(self.rows[index], self.title, times=self.times, sizes=self.sizes)
        return self.rows[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and (self.rows, self.title) == (other.rows, other.title)

    __hash__ = None  # type: ignore[assignment]  # rows may change

    def __str__(self) -> str:
        columns = self.columns
        shown, head = self._shown_cells(columns), [list(map(_in_words, columns))]
        if sum(width + 2 for width in _widths([*head, *shown])) - 2 > WIDEST:
            head = [list(line) for line in zip(*map(_two_lines, columns), strict=True) if any(line)]
        widths = _widths([*head, *shown])
        numeric = [_is_numeric(self.rows, name) for name in columns]
        lines = [_text_line(row, widths, numeric) for row in [*head, *shown]]
        lines.insert(len(head), "  ".join("-" * width for width in widths))
        return "\n".join([self.title, *lines] if self.title else lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns = self.columns
        styles = ["text-align: right" if _is_numeric(self.rows, name) else "text-align: left" for name in columns]
        caption = f"<caption>{'<br>'.join(map(escape, self.title.splitlines()))}</caption>" if self.title else ""
        plain, cells = [f'style="{style}"' for style in styles], list(zip(columns, styles, strict=True))
        head = _html_line("th", map(_in_words, columns), plain)
        looks = [[self._look(row.get(name), name, style) for name, style in cells] for row in self.rows]
        lines = zip(self._shown_cells(columns), _without_middle(looks, plain), strict=True)
        body = "\n".join(_html_line("td", row, look) for row, look in lines)
        return f"<table>{caption}\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"

    def _shown_cells(self, columns: list[str]) -> list[list[str]]:
        decimals = {name: _decimals([row.get(name) for row in self.rows]) for name in columns}
        cells = [[self._shown(row.get(name), name, decimals[name]) for name in columns] for row in self.rows]
        hidden = [f"... {len(cells) - SHOWN_ROWS} rows", *["..."] * (len(columns) - 1)]
        return _without_middle(cells, hidden[: len(columns)])

    def _shown(self, value: Value, name: str, decimals: int) -> str:
        if name in self.sizes and isinstance(value, int):
            return show_bytes(value)
        return _in_words(value) if name in NAMES and isinstance(value, str) else show(value, decimals)

    def _look(self, value: Value, name: str, style: str) -> str:
        """A cell's attributes in HTML; behind bytes a bar, as long as they are many in their column, unless all are."""
        if name not in self.sizes or not isinstance(value, int):
            return f'style="{style}"'
        style, told = f"{style}; white-space: nowrap", f"{value:,} bytes"
        column = [size for row in self.rows if isinstance(size := row.get(name), int)]
        if value > 0 and len(set(column)) > 1:
            percent = f"{100 * value / max(column):.0f}%"
            style += f"; background: linear-gradient({BAR}, {BAR}) no-repeat right / {percent} 100% content-box"
            told += f", {percent} of the column's largest"
        return f'style="{style}" title="{told}"'

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame, times included; needs `pip install zerolab[lab]`."""
        import pandas as pd

        return pd.DataFrame(self.rows)


def show(value: Value, decimals: int = 3) -> str:
    """One value as a table prints it: `1,234`, `0.500`, `2.5e-07`, `yes`, `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.{decimals}f}" if value == 0 or abs(value) >= 0.001 else f"{value:.1e}"
    return value


def show_bytes(count: int) -> str:
    """Bytes with their unit, in three digits: `1.23 MB` (MB is 1e6 bytes); below 1,000 the exact number, `20 B`."""
    for name, size in BYTE_UNITS:
        value = count / size
        if abs(value) >= 0.9995:  # below, it would be rounded to 1,000 of the next smaller unit
            decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
            return f"{value:,.{decimals}f} {name}"
    return f"{count} B"


def _widths(cells: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _two_lines(heading: str) -> tuple[str, str]:
    """A heading split between two words; the first line is empty if there is only one."""
    words = _in_words(heading).split(" ")
    half = len(words) // 2
    return " ".join(words[:half]), " ".join(words[half:])


def _decimals(column: Sequence[Value]) -> int:
    """How many decimals the floats of a column need, one to three."""
    # "32.900" for 32.9 would claim digits that were not measured; the same number for all keeps the points aligned.
    floats = [value for value in column if isinstance(value, float)]
    return max((next((few for few in (1, 2) if round(value, few) == value), 3) for value in floats), default=3)


def _is_numeric(rows: list[dict[str, Value]], name: str) -> bool:
    return all(not isinstance(row.get(name), str) for row in rows)


def _text_line(row: list[str], widths: list[int], numeric: list[bool]) -> str:
    cells = (
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(row, widths, numeric, strict=True)
    )
    return "  ".join(cells).rstrip()  # editors strip trailing blanks, and stored outputs would change


def _in_words(name: str) -> str:
    return name.replace("_", " ")


def _without_middle(rows: list[list[str]], instead: list[str]) -> list[list[str]]:
    """The rows, or of many the first and the last, and `instead` of all between them."""
    half = SHOWN_ROWS // 2
    return rows if len(rows) <= SHOWN_ROWS else [*rows[:half], instead, *rows[-half:]]


def _html_line(tag: str, row: Iterable[str], looks: list[str]) -> str:
    cells = (f"<{tag} {look}>{escape(text)}</{tag}>" for text, look in zip(row, looks, strict=True))
    return f"<tr>{''.join(cells)}</tr>"
