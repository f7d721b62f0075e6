"""What the page for hosts gives to paste is Python, and names what there is."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import minutes
import nbformat

ROOT = Path(__file__).resolve().parents[2]


def test_the_hubs_configuration_names_what_there_is_and_deals_the_cards_out():
    (text,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "hosts.md").read_text("utf-8"), re.DOTALL)
    config = SimpleNamespace(Spawner=SimpleNamespace())
    exec(text.replace("/srv/zerolab", str(ROOT)), {"get_config": lambda: config})  # noqa: S102  the page's own text
    spawner = config.Spawner
    module, name = re.search(r"from ([\w.]+) import (\w+)", spawner.cmd[2]).groups()
    assert callable(getattr(importlib.import_module(module), name))
    (setting,) = spawner.args
    assert (Path(setting.partition("=")[2]) / "overrides.json").is_file()
    assert (Path(spawner.environment["JUPYTER_PATH"]) / "kernels" / "python3" / "kernel.json").is_file()
    assert (ROOT / "notebooks" / Path(spawner.default_url).name).is_file()
    cards = [spawner.environment["CUDA_VISIBLE_DEVICES"](SimpleNamespace(user=SimpleNamespace(id=k))) for k in range(8)]
    assert sorted(set(cards)) == ["0,1", "2,3", "4,5", "6,7"]
    assert cards[:4] == cards[4:]


def said(page):
    return " ".join((ROOT / "docs" / page).read_text("utf-8").split())


def test_the_hours_that_the_pages_state_follow_from_the_rule():
    lessons = sorted((ROOT / "notebooks").glob("0[0-6]-*.ipynb"))
    found = [minutes.minutes(nbformat.read(lesson, as_version=4)) for lesson in lessons]
    hours, exercises = sum(map(sum, found)) / 60, sum(after for _, after in found) / 60
    assert f"00 to 06 are {hours:.0f} hours, {exercises:.0f} of them exercises" in said("hosts.md")
    assert f"Begin: {found[0][0]} minutes" in said("index.md")


def test_the_rule_counts_words_cells_what_plays_and_the_lines_of_our_answers():
    book = nbformat.v4.new_notebook()
    cell, words = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell
    book.cells = [words("word " * 400), cell("1 + 1"), cell("recording.play()")]
    assert minutes.minutes(book) == (10, 0)  # 2 + 1 + 3, rounded up to five
    tags = {"tags": ["zerolab.exercise=product"]}
    book.cells += [words("word " * 4000, metadata=tags), cell("attempt.play()", metadata=tags)]
    assert minutes.minutes(book) == (10, 10)  # 6 and two lines of 2
    assert minutes.stated(book) == "10, and 10 for exercises"
    assert minutes.of_exercise("clinic-stuck") == 10


def test_the_paths_of_a_workshop_add_up():
    page = (ROOT / "docs" / "hosts.md").read_text("utf-8")
    parts = re.split(r"^## (?:Half a day, )?(\d+) minutes$", page, flags=re.MULTILINE)[1:]
    sums = [
        sum(map(int, re.findall(r"^\| (\d+) \|", text.partition("\n## ")[0], re.MULTILINE))) for text in parts[1::2]
    ]
    assert sums == list(map(int, parts[::2])) == [45, 90, 240]
