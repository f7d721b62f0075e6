"""A table looks the same every time and never shows what differs between runs."""

import re

import pandas as pd
import pytest

from zerolab.tables import SHOWN_ROWS, Table, Value, show, show_bytes

ROWS: list[dict[str, Value]] = [
    {"stage": "ddp", "bytes": 1234567, "loss": 2.5, "step_seconds": 0.123},
    {"stage": "zero1", "bytes": 12, "loss": None, "step_seconds": 0.456},
]


def test_text_is_aligned_and_numbers_stand_to_the_right() -> None:
    assert str(Table(ROWS, "State")).splitlines() == [
        "State",
        "stage      bytes  loss",
        "-----  ---------  ----",
        "ddp    1,234,567   2.5",
        "zero1         12     -",
    ]
    assert repr(Table(ROWS)) == str(Table(ROWS))


def test_times_are_shown_only_when_asked_for() -> None:
    assert "seconds" not in str(Table(ROWS))
    assert "seconds" not in Table(ROWS)._repr_html_()
    assert "step seconds" in str(Table(ROWS, times=True))
    assert "0.456" in str(Table(ROWS, times=True))
    assert Table(ROWS).rows[0]["step_seconds"] == 0.123


def test_columns_of_bytes_have_units_and_rows_stay_exact() -> None:
    table = Table(ROWS, "State", sizes={"bytes"})
    assert str(table[:2]).splitlines()[1:] == [
        "stage    bytes  loss",
        "-----  -------  ----",
        "ddp    1.23 MB   2.5",
        "zero1     12 B     -",
    ]
    assert ">1.23 MB</td>" in table._repr_html_()
    assert table[0]["bytes"] == table.to_pandas()["bytes"][0] == 1234567


def test_a_cell_of_bytes_has_the_exact_number_as_tooltip_and_a_bar_of_its_share_and_is_one_line() -> None:
    rows: list[dict[str, Value]] = [
        {"stage": "ddp", "optimizer_state": 4_000_000, "lacks": -4},
        {"stage": "zero1", "optimizer_state": 1_000_000, "lacks": None},
    ]
    html = Table(rows, sizes={"optimizer_state", "lacks"})._repr_html_()
    assert re.findall(r'right / (\d+%) 100% content-box" title="([^"]*)">([^<]*)<', html) == [
        ("100%", "4,000,000 bytes, 100% of the column's largest", "4.00 MB"),
        ("25%", "1,000,000 bytes, 25% of the column's largest", "1.00 MB"),
    ]
    assert 'style="text-align: right; white-space: nowrap" title="-4 bytes">-4 B<' in html
    assert html.count("nowrap") == 3
    assert "linear-gradient" not in Table(rows[:1], sizes={"optimizer_state"})._repr_html_()


def test_names_are_shown_in_words_and_rows_keep_them() -> None:
    table = Table([{"category": "optimizer_state", "op": "all_gather", "step_counters": 1}])
    assert str(table).splitlines()[0] == "category         op          step counters"
    assert str(table).splitlines()[2].startswith("optimizer state  all_gather")
    assert "<td" in table._repr_html_()
    assert "optimizer_state" not in table._repr_html_()
    assert table[0]["category"] == "optimizer_state"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (-560, "-560 B"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (12_345_678, "12.3 MB"),
        (10**9, "1.00 GB"),
    ],
)
def test_bytes_have_three_digits(count: int, text: str) -> None:
    assert show_bytes(count) == text


def test_a_wide_table_has_its_headings_on_two_lines() -> None:
    words = ["sent", "received", "gathered", "reduced", "updated", "kept", "freed", "exchanged"]
    lines = str(Table([dict.fromkeys(["unit", *(f"{word}_a_step" for word in words)], 1)], "Bytes")).splitlines()
    assert lines[1].split() == words
    assert lines[2].split("  ")[:2] == ["unit", "a step"]
    assert max(map(len, lines)) < 100
    assert str(Table([{"word" * 40: 1}])).splitlines()[0] == "word" * 40


def test_html_is_stable_and_escaped() -> None:
    table = Table([{"<unit>": "a & b", "bytes": 1}], title="<x>\nwhy not")
    html = table._repr_html_()
    assert html == table._repr_html_()
    assert "&lt;unit&gt;" in html
    assert "a &amp; b" in html
    assert "<caption>&lt;x&gt;<br>why not</caption>" in html
    assert "id=" not in html


def test_a_long_table_leaves_out_its_middle_but_keeps_its_rows() -> None:
    table = Table([{"seq": seq} for seq in range(1000)])
    assert f"... {1000 - SHOWN_ROWS} rows" in str(table)
    assert len(table) == 1000
    assert table[999] == {"seq": 999}
    assert len(table[:5]) == 5
    assert str(table[:5]).endswith("4")


def test_to_pandas_has_every_row_and_column() -> None:
    frame = Table(ROWS).to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == ["stage", "bytes", "loss", "step_seconds"]
    assert len(frame) == 2


def test_an_empty_table_is_still_a_table() -> None:
    assert str(Table([], "Nothing")).startswith("Nothing")
    assert "<table>" in Table([])._repr_html_()


def test_a_nested_value_is_refused_by_its_column() -> None:
    with pytest.raises(TypeError, match="column 'state' of a table holds a dict"):
        Table([{"state": {}}])  # type: ignore[dict-item]


def test_floats_have_the_decimals_that_their_column_needs_and_no_more() -> None:
    table = Table([{"ms": 32.9, "GB": 1.25, "share": 2 / 3}, {"ms": 5.0, "GB": 50.0, "share": 0.5}])
    assert str(table).splitlines()[2:] == ["32.9   1.25  0.667", " 5.0  50.00  0.500"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.000"), (2.5e-7, "2.5e-07"), (True, "yes"), (None, "-"), (10**9, "1,000,000,000")]
)
def test_values_are_shown_in_one_way(value: float | None, text: str) -> None:
    assert show(value) == text
