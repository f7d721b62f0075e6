"""The commands around the lessons: lab, doctor, reset, progress."""

import argparse
from pathlib import Path
from typing import Any

from zerolab.cli.shared import Arguments, add_command, add_json, is_now, say
from zerolab.runtime.waiting import waiting


def add(commands: Any) -> None:
    """Adds the commands of this room."""
    lab = add_command(commands, "lab", _lab, "open JupyterLab at the first lesson, in work/")
    lab.add_argument("--port", type=int, default=8888, help="the first port to try (default: 8888)")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    more = "options for JupyterLab itself, after --, such as -- --ServerApp.certfile=my.pem"
    lab.add_argument("options", nargs="*", metavar="OPTION", help=more)
    doctor = add_command(commands, "doctor", _doctor, "say what this box has, and what is missing")
    add_json(doctor)
    doctor.add_argument("--lessons", action="store_true", help="run every lesson from top to bottom; takes minutes")
    reset = add_command(commands, "reset", _reset, "restore a lesson, yours kept as .bak; or forget your progress")
    reset.add_argument("which", help="the beginning of a lesson's name, such as 04; or all; or progress")
    progress = add_command(commands, "progress", _progress, "list the exercises and which of them are solved")
    add_json(progress)
    progress.add_argument("--reset", action="store_true", help=argparse.SUPPRESS)
    progress.add_argument("files", nargs="*", type=Path, help="progress files of a class: how many passed what")


def _lab(arguments: Arguments) -> None:
    from zerolab.lessons.workspace import lab

    if arguments.options and not arguments.options[0].startswith("-"):
        raise ValueError(f"lab has nothing to do with {arguments.options[0]!r}: after -- come options for JupyterLab")
    # None: if there is a display.
    lab(port=arguments.port, browser=False if arguments.no_browser else None, options=arguments.options)


def _reset(arguments: Arguments) -> None:
    from zerolab.lessons import progress, workspace

    if arguments.which == "progress":
        print("progress forgotten" if progress.reset() else "there was no progress to forget")
        return
    all_of_them = workspace.reset(arguments.which)
    for restored, kept in all_of_them:
        print(f"{restored} is as it was published" + (f"; yours is kept as {kept}" if kept else ""))
    if any(kept for _, kept in all_of_them):
        print("If JupyterLab has it open, choose Revert when it asks.")


def _doctor(arguments: Arguments) -> int:
    from zerolab import doctor
    from zerolab.lessons.preflight import run_lessons

    if arguments.lessons:
        return 0 if run_lessons() else 1
    with waiting("looking at this box, and starting four ranks on it"):
        report = doctor.examine()
    say(arguments, report, doctor.describe(report))
    # A workshop host's script can stop here, before thirty people arrive.
    return 0 if report["ok"] else 1


def _progress(arguments: Arguments) -> None:
    from zerolab.exercises.harness import solved
    from zerolab.lessons import progress

    if arguments.reset:
        is_now("progress --reset", "reset progress")
        _reset(argparse.Namespace(which="progress"))
    elif arguments.files and arguments.json:
        # `--json` would take the first of the class's files as the one to write.
        raise ValueError("--json is for your own progress, and files are a class's: ask for one of them")
    elif arguments.files:
        print(solved.of_class(arguments.files))
    else:
        say(arguments, progress.read(), solved.summary())
