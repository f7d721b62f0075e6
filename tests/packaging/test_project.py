"""The project's own papers say what is true: CONTRIBUTING's tree is the folder, and no file has a machine's path."""

import ast
import re
import stat
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
LINE = re.compile(r"^(?P<indent> *)(?P<names>(?:[\w.-]+/?)(?: [\w-]+\.py)*)(?: {2,}.*)?$")
UNSHOWN = {
    ".ci",
    ".gitignore",
    ".pre-commit-config.yaml",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
}
# Folders whose files the tree leaves to whoever opens them.
CLOSED = re.compile(r"^(notebooks|tests|tools|binder|docs|zerolab/(runtime|recording|player|exercises|data))/.")


def files():
    """Every file that is there and that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def drawn():
    """The paths in CONTRIBUTING's tree; those of folders end with a slash."""
    [block] = re.findall(r"^```\n(notebooks/.*?)^```", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    parents, paths = [], set()
    for line in block.splitlines():
        found = LINE.match(line)
        assert found, f"CONTRIBUTING's tree has a line that cannot be read: {line!r}"
        parents = parents[: len(found["indent"]) // 2]
        names = found["names"].split()
        paths |= {"".join(parents) + name for name in names}
        if names[0].endswith("/"):
            parents.append(names[0])
    return paths


def test_everything_in_the_tree_in_contributing_is_there():
    missing = [
        path for path in drawn() if not ((ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file())
    ]
    assert missing == []


def test_everything_that_is_there_is_in_the_tree_in_contributing():
    shown = drawn()
    tops = {name.split("/")[0] + ("/" if "/" in name else "") for name in files()}
    assert {top for top in tops if top.rstrip("/") not in UNSHOWN} <= shown
    modules = {name for name in files() if re.match(r"zerolab/.*\.py$", name) and not CLOSED.match(name)}
    assert {name for name in modules if not re.match(r"zerolab/\w+/__init__\.py$", name)} <= shown


def test_the_files_in_the_picture_of_three_ways_and_in_the_table_below_it_are_there():
    pictured = re.findall(r"\b\w+\.(?:py|js)\b", (ROOT / "docs" / "three-ways.svg").read_text())
    there = {path.name for path in (ROOT / "zerolab").rglob("*")}
    assert len(pictured) > 20
    assert set(pictured) <= there
    named = re.findall(r"`((?:zerolab|tests|docs)/[\w/-]+\.(?:py|js|md))`", CONTRIBUTING)
    assert len(named) >= 25
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_no_more_than_a_dozen_modules_lie_flat_in_the_package():
    flat = sorted(path.name for path in (ROOT / "zerolab").glob("*.py"))
    assert len(flat) <= 12, flat


def test_the_readmes_links_and_commands_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), f"README links to {target}, which is not there"
    makefile = (ROOT / "Makefile").read_text()
    for goal in re.findall(r"\bmake (\w+)", README):
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE), f"README says make {goal}"


def test_links_between_the_docs_lead_somewhere_in_a_checkout_too():
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name == "index.md":  # the site's own front page: nothing else leads to it
            continue
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"docs/{page.name} links to {target}, which is not there"


def test_no_file_carries_a_path_of_the_machine_it_was_written_on():
    machine = re.compile(
        r"(?<![\w.~-])/(?:home|Users|root|work|workspace)/(?!someone)[\w.-]+|site-packages/[\w-]+/|/opt/\w+"
    )
    texts = {name: (ROOT / name).read_bytes().decode("utf-8", "ignore") for name in files()}
    assert {name: found for name, text in texts.items() if (found := machine.findall(text))} == {}


def test_no_two_files_of_tests_share_a_name():
    # pytest imports a file by its name alone; a second one of that name ends the whole run before it begins.
    names = sorted(Path(name).name for name in files() if re.search(r"^tests/.*/?test_\w+\.py$", name))
    assert len(names) > 50
    assert {name for name in names if names.count(name) > 1} == set()


def test_scripts_are_executable():
    for path in (".ci/run", "binder/postBuild", "binder/start"):
        assert (ROOT / path).stat().st_mode & stat.S_IXUSR, path


def test_ci_calls_make_test_with_everything_required():
    assert "ZEROLAB_REQUIRE_ALL=1 make test" in (ROOT / ".ci" / "run").read_text().splitlines()[-1]


def test_pre_commit_needs_no_network():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"] for repo in hooks["repos"]} == {"local"}
    assert all(hook["language"] == "system" for repo in hooks["repos"] for hook in repo["hooks"])


def test_no_file_of_the_package_is_longer_than_a_reader_was_promised():
    package = [ROOT / name for name in files() if name.startswith("zerolab/") and name.endswith((".py", ".js", ".mjs"))]
    assert len(package) > 300
    assert {path.name: lines for path in package if (lines := len(path.read_text().splitlines())) > 350} == {}
    long = {}
    for path in package:
        nodes = ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ()
        for function in (node for node in nodes if isinstance(node, ast.FunctionDef)):
            code = function.body[ast.get_docstring(function) is not None :]
            lines = function.end_lineno - code[0].lineno + 1 if code else 0
            long |= {f"{path.name}, {function.name}": lines} if lines > 50 else {}
    assert long == {}
