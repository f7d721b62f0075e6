"""`make gpu`: tries on this box's GPU what the project promises about GPUs, and writes down what came of it.

    python tests/gpu/battery.py                  all promises, ten minutes at most
    python tests/gpu/battery.py shared hang      some of them
    python tests/gpu/battery.py --device cpu     for whoever writes promises: the same code without a GPU
    python tests/gpu/battery.py --not-run        the report of a project that has run on no GPU: each promise, not run

It needs this checkout and a Python with torch, cloudpickle, numpy and safetensors, no network and no `.venv/`. Each
promise runs in a process of its own with a limit of its own, so that one that crashes or hangs takes no other along.
Results are written after each into tests/bench/results/gpu-<card>.json and .md. The exit status is 0 if nothing is
broken, 1 if something is or the time was over, 2 without a GPU, of which nothing is written.
"""

import argparse
import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from promise import BROKEN, KEPT, NOT_REACHED, NOT_RUN, NOT_TESTABLE, attempt, load

ROOT = Path(__file__).resolve().parents[2]
PROMISES = Path(__file__).with_name("promises.py")
RESULTS = ROOT / "tests" / "bench" / "results"
TOTAL = 570.0  # seconds for all of them
LOG_LINES = 60  # of a broken promise, that are kept
NO_GPU = 2
# In a process of its own: a GPU that is lost, or a driver that hangs, must not take the report along.
BOX = """
import importlib.util, json, platform, sys
missing = [name for name in ("torch", "cloudpickle", "numpy", "safetensors") if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"this Python ({sys.executable}) has no {', '.join(missing)}: pip install {' '.join(missing)}")
import torch
from zerolab.runtime import drivers, machine
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
if not gpus and sys.argv[1] == "cuda":
    sys.exit(drivers.why_no_gpu())
nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus and torch.distributed.is_nccl_available() else None
print(json.dumps({
    "card": torch.cuda.get_device_name(0) if gpus else "none",
    "gpus": gpus,
    "memory_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if gpus else 0,
    "driver": machine.driver_version(),
    "cuda": torch.version.cuda,
    "nccl": nccl,
    "torch": torch.__version__,
    "python": platform.python_version(),
    "system": f"{platform.system()} {platform.release().split('-')[0]}",
    "cores": machine.cores(),
}))
"""
LIST = """
import json, sys
from pathlib import Path
import promise
made = promise.load(Path(sys.argv[1])).values()
print(json.dumps([{"name": each.name, "sentence": each.sentence, "limit": each.limit} for each in made]))
"""


def main() -> int:
    """Tries the promises and writes the report; the exit status."""
    options = _parser().parse_args()
    if options.attempt:
        attempt(load(options.promises)[options.attempt], options.device, options.answer)
        return 0
    if options.not_run:
        _write(_place(options.out or RESULTS, "none"), _nothing(options))
        return 0
    end = time.monotonic() + options.seconds  # to import torch for the first time is part of it
    box = _box(options.device)
    if isinstance(box, str):
        print(f"make gpu: {box}. Nothing was tried, and nothing was written.", file=sys.stderr)
        return NO_GPU
    folder = options.out or (RESULTS if options.device == "cuda" else None)
    places = [_place(folder, box["card"])] if folder else []
    report = {"date": dt.datetime.now(dt.UTC).date().isoformat(), "device": options.device, "box": box, "promises": []}
    print(_head(box, options))
    for promise in _chosen(options):
        report["promises"].append(_tried(promise, options, end))
        print(_line(report["promises"][-1]), flush=True)
        for place in places:  # after each: whoever ends this early keeps what is known
            _write(place, report)
    for place in places if options.device == "cuda" else []:
        # The report of a project that has run on no GPU is true no more.
        for untrue in place.parent.glob("gpu-none.*"):
            untrue.unlink()
    verdicts = [each["verdict"] for each in report["promises"]]
    print(", ".join(f"{verdicts.count(word)} {word}" for word in (KEPT, BROKEN, NOT_TESTABLE, NOT_REACHED)))
    print(*(f"written: {place}.json and .md" for place in places), sep="\n")
    return int(BROKEN in verdicts or NOT_REACHED in verdicts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="promises to try, in this order (default: all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu claims and writes nothing")
    parser.add_argument("--not-run", action="store_true", help="try nothing, and write that nothing was run")
    parser.add_argument("--promises", type=Path, default=PROMISES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="folder of the report (default: tests/bench/results, on a GPU)")
    parser.add_argument("--seconds", type=float, default=TOTAL, help="for all of them (default: %(default)g)")
    parser.add_argument("--attempt", help=argparse.SUPPRESS)  # one promise, in this process
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    return parser


def _chosen(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Name, sentence and limit of each promise to try. They are asked in another process: importing torch may crash."""
    asked = subprocess.run(
        [sys.executable, "-c", LIST, str(options.promises)], env=_environment(), stdout=subprocess.PIPE, check=True
    )
    known = {promise["name"]: promise for promise in json.loads(asked.stdout)}
    if unknown := set(options.names) - set(known):
        sys.exit(f"make gpu: there is no promise {min(unknown)!r}; there are {', '.join(known)}")
    return [known[name] for name in options.names or known]


def _nothing(options: argparse.Namespace) -> dict[str, Any]:
    """The report of a project that has run on no GPU."""
    promises = [{"name": each["name"], "sentence": each["sentence"], "verdict": NOT_RUN} for each in _chosen(options)]
    return {"device": "none", "box": {"card": "none"}, "promises": promises}


def _environment() -> dict[str, str]:
    path = [str(Path(__file__).parent), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # NVIDIA's images for torch multiply in TF32, and what is compared here is fp32.
    exact = {"NVIDIA_TF32_OVERRIDE": "0"}
    return os.environ | exact | {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def _box(device: str) -> dict[str, Any] | str:
    """What this box is; or a sentence that says why nothing can be tried."""
    command = [sys.executable, "-c", BOX, device]
    try:
        asked = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, timeout=120, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return "torch did not say within two minutes which GPUs there are: look at nvidia-smi and at dmesg for Xid"
    if asked.returncode == 0:
        return dict(json.loads(asked.stdout.splitlines()[-1]))
    return (asked.stderr.strip().splitlines() or [f"torch ended with {asked.returncode}"])[-1].rstrip(".")


def _tried(promise: dict[str, Any], options: argparse.Namespace, end: float) -> dict[str, Any]:
    """What came of one promise, as the report has it."""
    known, limit, left = {key: promise[key] for key in ("name", "sentence")}, promise["limit"], end - time.monotonic()
    if left < min(10, limit):
        return known | {"verdict": NOT_REACHED, "reason": "the time for all of them was over", "seconds": 0.0}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zerolab-gpu-") as folder:
        answer, log = Path(folder, "answer.json"), Path(folder, "log")
        ended = _ended(options, promise["name"], answer, log, min(left, limit))
        if answer.exists():
            found = json.loads(answer.read_text())
        elif ended is None and left < limit:  # that says nothing about the promise
            found = {"verdict": NOT_REACHED, "reason": "the time for all of them was over before it was done"}
        else:
            found = {"verdict": BROKEN, "reason": ended or f"not done after {limit:.0f} s"}
        if found["verdict"] == BROKEN:
            lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            found |= {"reason": _anonymous(found["reason"]), "log": [_anonymous(line) for line in lines]}
    return known | found | {"seconds": round(time.monotonic() - start, 1)}


def _ended(options: argparse.Namespace, name: str, answer: Path, log: Path, limit: float) -> str | None:
    """Runs one promise in a process of its own; how that ended, in words, or None if it was not done."""
    command = [sys.executable, __file__, "--promises", str(options.promises), "--device", options.device]
    command += ["--attempt", name, "--answer", str(answer)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=_environment(), stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill(process)
    if code >= 0:
        return f"ended with exit status {code} and without an answer"
    return f"killed by {signal.Signals(-code).name}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a promise: its own group; ranks end with the process that started them."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _anonymous(text: str) -> str:
    """A line of a log without the folders of this machine: reports are kept in the repository."""
    text = re.sub(r"[^\s\"']*/site-packages/", "", text.replace(str(ROOT), "."))
    return re.sub(r"/(?:home|opt|root|Users|work|workspace)/[^\s\"':,)]*/", "", text)


def _head(box: dict[str, Any], options: argparse.Namespace) -> str:
    """What is about to happen, and on what."""
    if options.device == "cpu":
        return f"--device cpu, torch {box['torch']}: this tries the promises' own code, and says nothing about any GPU."
    count = f"{box['gpus']} GPU{'s' * (box['gpus'] > 1)}"
    versions = f"torch {box['torch']}, CUDA {box['cuda']}, driver {box['driver']}, NCCL {box['nccl'] or 'missing'}"
    return f"{count}, {box['card']}; {versions}. This takes {options.seconds / 60:.0f} minutes at most."


def _line(tried: dict[str, Any]) -> str:
    reason = f" ({tried['reason']})" if tried.get("reason") else ""
    return f"{tried['verdict']:<13}{tried['seconds']:6.1f} s  {tried['name']}: {tried['sentence']}{reason}"


def _place(folder: Path, card: str) -> Path:
    """Where a card's report goes, without an ending: `gpu-nvidia-h200` in the folder."""
    return folder / f"gpu-{re.sub(r'[^a-z0-9]+', '-', card.lower()).strip('-')}"


def _write(place: Path, report: dict[str, Any]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{place}.json").write_text(json.dumps(report, indent=1) + "\n")
    Path(f"{place}.md").write_text(_text(report))


def _text(report: dict[str, Any]) -> str:
    """The report in words: a row a promise, and the logs of those that are broken."""
    rows = [_row(each) for each in report["promises"]]
    if "date" not in report:
        parts = ["# What is promised about GPUs: not run", "No GPU has run any of this. `make gpu` tries it on one."]
    else:
        box = ", ".join(f"{name} {value}" for name, value in report["box"].items())
        parts = [f"# What is promised about GPUs, tried on {report['box']['card']}", f"On {report['date']}: {box}."]
    parts += ["\n".join(["| promise | verdict | what was measured, or why not |", "|---|---|---|", *rows])]
    for each in report["promises"]:
        if "log" in each:
            parts += [f"## Broken: {each['name']}", "\n".join(f"    {line}".rstrip() for line in each["log"])]
    return "\n\n".join(parts) + "\n"


def _row(tried: dict[str, Any]) -> str:
    measured = ", ".join(f"{name} {value}" for name, value in tried.get("figures", {}).items())
    cells = (tried["sentence"], tried["verdict"], tried.get("reason") or measured)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(main())
