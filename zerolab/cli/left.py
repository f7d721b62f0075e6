"""The commands that read what runs have left: play, open, why, diff."""

import os
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zerolab import files
from zerolab.cli.shared import Arguments, add_command, add_json, check_apart, check_there, say


def add(commands: Any) -> None:
    """Adds the commands of this room."""
    play = add_command(commands, "play", _play, "write a recording's page and open it")
    play.add_argument("recording", type=Path, help="from `zerolab record`, zerolab.trace, zerolab.run or save()")
    play.add_argument("--out", type=Path, metavar="FILE", help="the page (default: beside the recording, as .html)")
    play.add_argument("--no-open", action="store_true", help="only write the page")
    opened = add_command(commands, "open", _open, "show files that torch's own tools wrote: traces, dumps, snapshots")
    kinds = "torch.profiler traces, flight recorder dumps or memory snapshots, one per rank"
    opened.add_argument("files", nargs="+", type=Path, metavar="FILE", help=kinds)
    opened.add_argument("--out", type=Path, metavar="FILE", help="where to keep it as a recording (JSON)")
    opened.add_argument("--html", type=Path, metavar="FILE", help="the page (default: beside the first file, as .html)")
    opened.add_argument("--no-open", action="store_true", help="open nothing; write no page unless --html names one")
    why = add_command(commands, "why", _why, "name the rank and line that caused a hang, from the files it left behind")
    what = "the folder that `torchrun ... -m zerolab.why train.py` wrote, or flight recorder dumps of all ranks"
    why.add_argument("files", nargs="+", type=Path, metavar="FILE", help=what)
    add_json(why)
    diff = add_command(commands, "diff", _diff, "say where two runs of the same training diverge, and why")
    fingerprints = "a recording made with --fingerprints, or the folder beside it: "
    diff.add_argument("good", type=Path, metavar="GOOD", help=f"{fingerprints}the correct run")
    other = "the same from the other run; its stage and number of ranks may differ"
    diff.add_argument("bad", type=Path, metavar="BAD", help=other)
    add_json(diff)


def _play(arguments: Arguments) -> None:
    check_there([arguments.recording], "check the name, or record one with `zerolab record`")
    from zerolab.recording.recording import Recording

    recording = Recording.load(arguments.recording)
    page: Path = arguments.out or arguments.recording.with_suffix(".html")
    refusal = "the page would overwrite the recording {}: choose another file with --out"
    check_apart(page, [arguments.recording], refusal)
    _show(recording, page, opens=not arguments.no_open)


def _show(recording: Any, page: Path, *, opens: bool) -> None:
    """Writes a recording's page, and opens it where there is a display."""
    from zerolab.lessons.workspace import has_display

    recording.to_html(page)
    # Over ssh, a browser would open where nobody sees it, or be a text browser in the terminal.
    seen = opens and has_display(os.environ)
    print(f"the page is {page}" + ("" if seen or not opens else "; there is no display to open it on"))
    if seen:
        webbrowser.open(page.resolve().as_uri())


def _open(arguments: Arguments) -> None:
    given: list[Path] = arguments.files
    check_there(given)
    from zerolab.opening import describe, open_files

    page: Path = arguments.html or given[0].parent / f"{given[0].name.partition('.')[0]}.html"
    has_page = arguments.html or not arguments.no_open
    spared = "{}, which is to be opened: choose a file with"  # nobody could make a trace of that run again
    if arguments.out:
        check_apart(arguments.out, given, f"the recording would overwrite {spared} --out")
    if has_page:
        check_apart(page, given, f"the page would overwrite {spared} --html")
        if arguments.out:
            refusal = "the page would overwrite the recording {}: choose another file with --html"
            check_apart(page, [arguments.out], refusal)
        files.check_place(page)
    recording = open_files(given)
    print(describe(recording))
    if arguments.out:
        recording.save(arguments.out)
        print(f"kept in {arguments.out}; zerolab play shows it")
    if has_page:
        _show(recording, page, opens=not arguments.no_open)


def _why(arguments: Arguments) -> None:
    check_there(arguments.files)
    from zerolab.runtime.screen import printable
    from zerolab.why.dumps import explain

    found = explain(arguments.files)
    say(arguments, found.as_json, printable(found.text))  # names of files in a dump may hold anything


def _diff(arguments: Arguments) -> int:
    from zerolab.difference.compare import compare

    result = compare(arguments.good, arguments.bad)
    say(arguments, asdict(result), result)
    return 1 if result.parting else 0
