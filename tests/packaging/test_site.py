"""The site: it builds without a warning, its links lead somewhere, it fetches nothing, and its players are alive.

All pages are built. One notebook is executed for it, the others show what is stored in them: executing all of them
takes three minutes, and `tests/notebooks` does that already. 03 has a player and a figure, and is quickly done.
"""

import contextlib
import functools
import importlib
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from zerolab import catalog, theory
from zerolab.exercises import load, names
from zerolab.theory import MOMENTS
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.job import SHARDING

ROOT = Path(__file__).resolve().parents[2]
EXECUTED = "03-ddp"
LARGEST_PAGE = 3_000_000
KINDS = (
    "index",
    f"notebooks/{EXECUTED}",
    "exercises/zero1-average",
    "exercises/gpus-needed",
    "solutions",
    "hosts",
    "questions",
    "planner",
    "try",
    "api",
)

pytestmark = [pytest.mark.slow, pytest.mark.browser]


class Page(HTMLParser):
    """What a page refers to, and the places in it that others may refer to."""

    def __init__(self, path):
        super().__init__()
        self.path, self.anchors, self.links, self.fetched, self.frames = path, set(), [], [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors.add(given.get("id"))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "iframe":
            self.frames.append(given)
        self.fetched += [given[name] for name in ("src", "srcset", "data", "poster") if given.get(name)]
        # Sphinx names neighbouring pages in <link>; a browser does not fetch those.
        if tag == "link" and not {"next", "prev", "index", "search", "author"} & set(given["rel"].split()):
            self.fetched.append(given["href"])

    def file(self, address):
        """The file that an address on this page means."""
        path = unquote(urlsplit(address).path)
        return (self.path.parent / path).resolve() if path else self.path


@pytest.fixture(scope="module")
def site(tmp_path_factory, require):
    """The folder of a freshly built site."""
    found = all(importlib.util.find_spec(name) for name in ("sphinx", "myst_nb", "furo"))
    require(found, "Sphinx with its theme", 'pip install -c constraints.txt -e ".[site]"')
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "tools" / "make_site.py", "--out", out, "--execute", EXECUTED]
    command += ["--choices", "gpt-tiny-zero3-4-base"]  # the one that the page opens with; all take minutes
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZEROLAB_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "html"


@pytest.fixture(scope="module")
def pages(site):
    """Every page that Sphinx wrote, read; the players' own pages are tested with the player."""
    return {path: Page(path) for path in site.rglob("*.html") if path.parent.name != "pictures"}


@pytest.fixture
def show(site, tabs):
    """Opens a page of the site, from the folder, as somebody does who was given it on a memory stick.

    One at a time: the next page comes into the tab of the one before, which has forgotten that.
    """
    opened = []

    def close():
        for tab in opened:
            tab.remove_listener("request", tab.hear)
            tabs.give_back(tab)
        opened.clear()

    def opening(page, width=1280, scheme="light"):
        close()
        tab = tabs.take(width, 900, scheme)
        tab.asked = []
        tab.hear = lambda request: tab.asked.append(request.url)
        tab.on("request", tab.hear)
        opened.append(tab)
        tab.goto((site / f"{page}.html").as_uri())
        return tab

    yield opening
    close()


@pytest.fixture
def served(site, browser):
    """Opens a page from a server on this machine: from a folder, browsers run no Python."""
    with serving(site) as address, browser.new_page() as tab:

        def opening(page):
            tab.goto(f"{address}/{page}.html")
            return tab

        yield opening


@contextlib.contextmanager
def serving(folder):
    """Serves a folder on this machine, and gives its address."""
    handler = functools.partial(Quiet, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def answering(site, browser):
    """The planner's page from a server on this machine, in which Python answers once it has been asked."""
    with serving(site) as address, browser.new_page() as tab:
        tab.goto(f"{address}/planner.html")
        yield tab


@pytest.fixture
def planner(answering):
    """That page with its form as it was at first; Python stays."""
    answering.evaluate("() => document.querySelector('.zl-planner').reset()")
    return answering


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and says nothing."""

    def log_message(self, *_):
        pass


def first_player(tab):
    """The frame of the page's first player, scrolled to and drawn."""
    tab.locator("iframe.zl-frame").first.scroll_into_view_if_needed()

    def frames():
        return [frame for frame in tab.frames if "/pictures/" in frame.url]

    wait_until(tab, frames)
    [inner] = frames()
    inner.locator(".zl-player").wait_for()
    return inner


def state(inner):
    return inner.evaluate("window.zerolabPlayers[0].state()")


def wait_until(tab, true):
    for _ in range(3000):
        if true():
            return
        tab.wait_for_timeout(20)
    pytest.fail("it did not happen within a minute")


def test_every_lesson_exercise_and_document_is_a_page(site):
    lessons = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {path.stem for path in (site / "notebooks").glob("*.html")} == lessons
    exercises = {path.stem.replace("_", "-") for path in (ROOT / "zerolab" / "exercises").glob("[!_]*.py")}
    assert {path.stem for path in (site / "exercises").glob("*.html")} == exercises | {"index"}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= {path.stem for path in site.glob("*.html")}


def test_every_link_leads_to_a_place_that_is_there(pages):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if urlsplit(link).scheme:
                continue
            target, anchor = page.file(link), unquote(urlsplit(link).fragment)
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append((path.name, link))
    assert broken == []


def test_no_page_fetches_anything_from_elsewhere(site, pages):
    fetched = {address for page in pages.values() for address in page.fetched}
    assert [address for address in fetched if re.match(r"(?!data:)\w+:|//", address)] == []
    styles = {path.name: path.read_text() for path in site.rglob("*.css")}
    foreign = re.compile(r"""(?:url\(\s*|@import\s+)['"]?(?:https?:)?//""")
    assert [name for name, text in styles.items() if foreign.search(text)] == []


def test_a_page_asks_no_other_host_when_it_is_open(show):
    for page in ("index", f"notebooks/{EXECUTED}", "search"):
        tab = show(page)
        if page != "search":
            first_player(tab)
        assert len(tab.asked) > 3
        assert [url for url in tab.asked if not url.startswith(("file:", "data:"))] == []


def test_no_page_is_larger_than_three_megabytes_with_all_that_it_loads(pages):
    sizes = {}
    for path, page in pages.items():
        files = {page.file(fetched) for fetched in page.fetched if not fetched.startswith("data:")}
        sizes[path.name] = path.stat().st_size + sum(file.stat().st_size for file in files)
    assert {name: size for name, size in sizes.items() if size > LARGEST_PAGE} == {}


def test_players_wait_until_they_are_scrolled_to_and_are_locked_in(site, pages):
    frames = {path.stem: page.frames for path, page in pages.items() if page.frames}
    assert set(frames) == {"index", EXECUTED}
    for frame in (frame for every in frames.values() for frame in every):
        assert (frame["loading"], frame["sandbox"]) == ("lazy", "allow-scripts")
        assert frame["title"]


@pytest.mark.parametrize("page", ["index", f"notebooks/{EXECUTED}"])
def test_a_player_on_a_page_plays(show, page):
    tab = show(page)
    complaints = []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    inner = first_player(tab)
    before = state(inner)["index"]
    if page != "index":  # whose player plays one step by itself
        inner.get_by_role("button", name="Play", exact=False).first.click()
    wait_until(tab, lambda: state(inner)["index"] > before)
    inner.get_by_role("button", name="Pause", exact=False).first.click()
    assert not state(inner)["playing"]
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_and_player_have_the_same_theme_whoever_chooses_it(show, scheme):
    tab = show("index", scheme=scheme)
    inner = first_player(tab)
    inner.get_by_role("button", name="Pause", exact=False).first.click()  # it plays one step by itself
    other = {"light": "dark", "dark": "light"}[scheme]
    wait_until(tab, lambda: state(inner)["theme"] == scheme)
    place = state(inner)["index"]
    chosen = "() => document.body.dataset.theme"
    while tab.evaluate(chosen) != other:
        tab.locator(".theme-toggle:visible").first.click()
    wait_until(tab, lambda: state(inner)["theme"] == other)
    assert state(inner)["index"] == place
    tab.emulate_media(color_scheme=other)
    while tab.evaluate(chosen) != "auto":
        tab.locator(".theme-toggle:visible").first.click()
    tab.emulate_media(color_scheme=scheme)
    wait_until(tab, lambda: state(inner)["theme"] == scheme)


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window_and_a_player_fits_its_frame(show, width):
    for page in KINDS:
        tab = show(page, width)
        assert tab.evaluate("() => document.documentElement.scrollWidth") <= width, page
    inner = first_player(show("index", width))
    assert inner.evaluate("() => document.documentElement.scrollHeight <= window.innerHeight")


def test_on_paper_a_player_is_its_still(show):
    tab = show(f"notebooks/{EXECUTED}")
    live, printed = tab.locator(".zl-frame"), tab.locator(".zl-printed")
    assert (live.count(), printed.count()) == (1, 1)
    assert live.is_visible()
    assert not printed.is_visible()
    tab.emulate_media(media="print")
    assert not live.is_visible()
    assert printed.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(show, scheme, require):
    found = importlib.util.find_spec("axe_playwright_python")
    require(found, "axe-playwright-python", "pip install 'zerolab[test]'")
    from axe_playwright_python.sync_playwright import Axe

    for page in (*KINDS[:5], "planner", "try"):  # the other kinds have the same parts
        told = Axe().run(show(page, scheme=scheme), options={"iframes": False})  # the player has tests of its own
        faults = [
            (fault["id"], node["html"][:160]) for fault in told.response["violations"] for node in fault["nodes"][:3]
        ]
        assert faults == [], page


def test_a_link_to_a_file_that_is_no_page_ends_the_build(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    relinked = importlib.import_module("make_site").relinked
    text = "[a](../docs/glossary.md#rank) [b](04-zero1.ipynb) [c](https://arxiv.org) [d](#here)"
    assert relinked(text, "notebooks", "notebooks") == text.replace("../docs/", "../")
    with pytest.raises(ValueError, match=r"links to \.\./zerolab/comparison\.py, which the site does not have"):
        relinked("[a](../zerolab/comparison.py)", "docs", "")


def test_a_lessons_card_shows_code_in_its_title_as_code(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    site_pages, site_lessons = (importlib.import_module(name) for name in ("site_pages", "site_lessons"))
    lessons = [site_lessons.Lesson(path, None) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    cards = site_pages.cards(lessons)
    assert "from the lessons to your <code>train.py</code></b>" in cards
    assert "`" not in cards


def test_the_planner_shows_a_plan_before_anything_is_loaded_and_answers_in_pythons_words(served):
    planner = served("planner")
    assert planner.locator(".zl-answer").text_content() == theory.plan("7b", 8).answer
    planner.select_option("[name=model]", "llama3-70b")
    planner.get_by_text(theory.plan("llama3-70b", 8).answer).wait_for(timeout=60_000)
    planner.select_option("[name=checkpointing]", "block")
    planner.select_option("[name=world_size]", "64")
    found = theory.plan("llama3-70b", 64, checkpointing="block")
    planner.get_by_text(found.answer).wait_for()
    assert planner.locator(".zl-stage b").all_text_contents() == [row["stage"] for row in found]
    for text, row in zip(planner.locator(".zl-stage span").all_text_contents(), found, strict=True):
        assert text.startswith(f"{row['needs GB']:,.1f} GB, {'fits' if row['fits'] else 'lacks'}")
    assert found.settings()["fsdp2"] in planner.locator("details pre").all_text_contents()[0]


def test_the_planners_page_says_how_much_python_loads(site):
    loaded = [path for path in (site / "_static" / "python").iterdir() if path.name != "NOTICE.txt"]
    size = sum(path.stat().st_size for path in loaded) / 1e6
    assert f"Python ({size:.0f} MB) loads" in (site / "planner.html").read_text(encoding="utf-8")


def test_where_nothing_fits_the_planner_says_what_to_try(planner):
    planner.select_option("[name=model]", "gpt3-175b")
    found = theory.plan("gpt3-175b", 8)
    planner.get_by_text(found.answer).wait_for(timeout=60_000)
    tried = planner.locator(".zl-remedies td:first-child").all_text_contents()
    assert tried == [row["try"] for row in found.remedies]
    planner.select_option("[name=world_size]", "64")
    planner.select_option("[name=tensor]", "8")
    planner.get_by_text(theory.plan("gpt3-175b", 64, tensor=8).answer).wait_for()


def test_what_the_planner_refuses_it_refuses_in_the_page_in_the_same_words(planner):
    with pytest.raises(ValueError, match="tokens") as refusal:
        theory.plan("7b", 8, length=10**9)
    planner.fill("[name=length]", str(10**9))
    planner.locator("[name=length]").press("Tab")
    planner.get_by_text(f"{refusal.value}.").wait_for(timeout=60_000)


def test_the_planner_in_the_page_has_the_numbers_of_python_for_a_thousand_inputs(planner, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    in_page = importlib.import_module("in_page")
    dice = random.Random(1)
    asked = [
        json.dumps(
            {
                "model": dice.choice(list(catalog.ARCHITECTURES)),
                "world_size": 2 ** dice.randrange(11),
                "gpu": dice.choice(list(catalog.GPUS)),
                "precision": dice.choice(["bf16", "fp16", "fp32"]),
                "checkpointing": dice.choice(CHECKPOINTING),
                "kernels": dice.choice(["eager", "compiled", "tuned"]),
                "moments": dice.choice(list(MOMENTS)),
                "sharding": dice.choice(SHARDING),
                "tensor": 2 ** dice.randrange(3),
                "rows": dice.randrange(1, 65),
            }
        )
        for _ in range(1000)
    ]
    answers = planner.evaluate(
        "async (asked) => { const { ask } = await import(ASK);"
        " return Promise.all(asked.map((one) => ask('planned', one))); }",
        asked,
    )
    for question, answer in zip(asked, answers, strict=True):
        here, there = json.loads(in_page.planned(question)), json.loads(answer)
        assert there.get("parts") == here.get("parts"), question  # bytes, exactly
        assert there.get("error") == here.get("error")
        assert there.get("remedies") == here.get("remedies")
        for row, known in zip(there.get("rows", []), here.get("rows", []), strict=True):
            seconds = [name for name in known if name.endswith("seconds")]  # whose last digit is the processor's
            assert [row[name] for name in seconds] == pytest.approx([known[name] for name in seconds], rel=1e-12)
            assert {**row, **dict.fromkeys(seconds)} == {**known, **dict.fromkeys(seconds)}


def test_from_a_folder_the_planner_says_how_to_have_python(show):
    tab = show("planner")
    tab.select_option("[name=world_size]", "16")
    tab.get_by_text("python -m http.server").wait_for()


def answer(tab, text):
    """Writes an answer to the page's exercise, has it checked, and gives what the page says."""
    said = tab.locator(".zl-said")
    tab.locator(".zl-exercise textarea").fill(text)
    tab.get_by_role("button", name="Check").click()
    said.locator(".zl-verdict").wait_for(timeout=60_000)
    return said.inner_text()


NEEDED = "def gpus_needed(stage, num_params, precision, memory):\n    "


def test_an_exercise_that_is_a_plain_function_is_answered_on_the_page(served):
    tab = served("exercises/gpus-needed")
    exercise = load("gpus-needed")
    form = tab.locator(f"[data-exercise={exercise.id}]")  # a lesson has several
    text, tried = form.locator("textarea"), form.locator(".zl-tried")
    assert text.input_value() == exercise.opening() + "\n"
    assert 'The hole "find the smallest number of GPUs" is still open' in answer(tab, exercise.opening())
    assert tried.text_content() == ""  # nothing ran
    assert "`gpus_needed` failed: ZeroDivisionError" in answer(tab, f"{NEEDED}return 1 / 0")
    assert tried.text_content() == "not passed yet, 1 try"
    assert "✓ Passed." in answer(tab, exercise.solution_source())
    assert tab.locator(".zl-rows tbody tr").count() == exercise.targets.tries
    served("notebooks/11-beyond-one-box")  # where the same exercise stands
    assert tried.text_content() == "✓ passed, 2 tries"
    assert text.input_value() == exercise.solution_source()
    form.get_by_role("button", name="Start again").click()
    assert text.input_value() == exercise.opening() + "\n"
    tab = served("exercises/index")
    assert tab.locator("tr", has_text="passed here").all_inner_texts()[0].startswith(exercise.title)


def test_an_answer_that_never_ends_is_ended_and_the_next_one_is_checked(served):
    tab = served("exercises/gpus-needed")
    never = "while True:\n        try:\n            pass\n        except BaseException:\n            pass"
    tab.evaluate("() => { document.querySelector('.zl-exercise').dataset.seconds = 1; }")  # the words stay
    assert "`gpus_needed` did not finish in 10 seconds" in answer(tab, NEEDED + never)
    assert "✓ Passed." in answer(tab, load("gpus-needed").solution_source())


def test_the_text_of_an_answer_is_written_with_the_keys_of_an_editor(served):
    tab = served("exercises/gpus-needed")
    area = tab.locator(".zl-exercise textarea")
    area.fill("")
    area.press_sequentially("def f():")
    area.press("Enter")
    area.press_sequentially("if 1:")
    area.press("Enter")
    area.press_sequentially("x")
    area.press("Tab")
    assert area.input_value() == "def f():\n    if 1:\n        x    "
    area.press("Escape")
    area.press("Tab")
    assert tab.evaluate("() => document.activeElement.textContent") == "Check"


def test_pythons_words_on_every_answer_are_the_same_in_the_page(served, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    in_page = importlib.import_module("in_page")
    plain = [exercise for exercise in map(load, names()) if not exercise.targets.on_ranks]
    texts = [(e.id, text) for e in plain for text in (e.solution_source(), *map(e.wrong_source, e.wrong))]
    asked = [json.dumps({"id": name, "text": text, "seed": 7}) for name, text in texts]
    answers = served("exercises/gpus-needed").evaluate(
        "async (asked) => { const { ask } = await import(ASK_HERE);"
        " return Promise.all(asked.map((one) => ask('checked', one))); }",
        asked,
    )
    assert len(plain) > 10
    for question, there in zip(asked, answers, strict=True):
        assert json.loads(there) == json.loads(in_page.checked(question)), question


def test_from_a_folder_an_exercise_says_how_to_have_python(show):
    tab = show("exercises/gpus-needed")
    tab.get_by_role("button", name="Check").click()
    tab.get_by_text("python -m http.server").wait_for()


def test_an_exercise_on_ranks_says_where_it_runs(show):
    tab = show("exercises/zero1-average")
    assert tab.locator(".zl-exercise").count() == 0
    tab.get_by_text("which a web page cannot start").wait_for()
