"""The recordings that the page "Try it" plays: every choice of its panel, made by real ranks or simulated.

    python tools/choices.py [--out FOLDER] [--cache FOLDER] [--only PART_OF_A_NAME ...]

A base of model, stage and N, and one option changed at a time: every choice that the panel offers exists, and they are
a hundred instead of thousands. Each is two steps, packed as a script that a page from a folder may load too.
"""

import argparse
import base64
import gzip
import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from site_lessons import package_digest

from zerolab import Cluster, models, simulate, theory
from zerolab.comparison import LEARNING_RATE, Training, row_of
from zerolab.engines import ENGINES
from zerolab.files import write_text
from zerolab.player.bundle import script, style
from zerolab.player.payload import payload
from zerolab.simulation.checkpointing import checkpoint_blocks

ROOT = Path(__file__).resolve().parent.parent
STEPS = 2  # Adam makes its state in the first, and the player opens in the second
RECORDED = {"gpt-tiny": (1, 2, 4, 8), "mlp-odd": (1, 2, 4, 8)}
SIMULATED = {"7b": (8, 64, 512, 1024), "llama-70b": (8, 64, 512, 1024), "1t": (8, 64, 512, 1024)}
BASE = "base"
CHANGES: dict[str, dict[str, Any]] = {
    BASE: {},
    "bf16": {"precision": "bf16"},
    "two-batches": {"batches": 2},
    "checkpointed": {"checkpointing": "block"},
    "one-unit": {"options": {"units": []}},
    "no-prefetch": {"options": {"prefetch": 0}},
    "prefetch-2": {"options": {"prefetch": 2}},
}
ONLY_ZERO3 = ("no-prefetch", "prefetch-2")


@dataclass(frozen=True)
class Choice:
    """What the panel has been set to."""

    model: str
    world_size: int
    stage: str
    change: str = BASE

    @property
    def name(self) -> str:
        """What its file is called; the panel puts the same together."""
        return f"{self.model}-{self.stage}-{self.world_size}-{self.change}"


def every() -> Iterator[Choice]:
    """All choices of the panel, those of the same ranks beside each other."""
    for model, sizes in (RECORDED | SIMULATED).items():
        for world_size in sizes:
            for stage in theory.STAGES:
                for change in CHANGES if model == "gpt-tiny" else (BASE,):
                    if stage == "zero3" or change not in ONLY_ZERO3:
                        yield Choice(model, world_size, stage, change)


def trained(choice: Choice) -> Training:
    """Runs on a rank: two steps under what was chosen."""
    change = CHANGES[choice.change]
    model = models.build(choice.model)
    checkpoint_blocks(model, change.get("checkpointing", "none"))
    keywords = {"lr": LEARNING_RATE, "precision": change.get("precision", "fp32"), **change.get("options", {})}
    engine = ENGINES[choice.stage](model, torch.optim.AdamW, **keywords)
    parts, losses = change.get("batches", 1), []

    def mean_over_parts(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return models.loss(outputs, targets).div(parts)

    for inputs, targets in models.batches(choice.model, dist.get_world_size(), dist.get_rank(), STEPS):
        *first, last = zip(inputs.chunk(parts), targets.chunk(parts), strict=True)
        with engine.accumulate():
            for some, wanted in first:
                engine.backward(mean_over_parts(engine.model(some), wanted))
        losses.append(engine.training_step(*last, mean_over_parts).item())
    return Training(losses, [], {})


def passes(choice: Choice) -> float:
    """How many times the traffic of a step with one batch: ZeRO-2 and 3 reduce every batch, ZeRO-3 also gathers."""
    batches: int = CHANGES[choice.change].get("batches", 1)
    return {"zero2": (batches + 1) / 2, "zero3": batches}.get(choice.stage, 1)


def packed(recording: Any) -> str:
    """A recording as the page reads it, small: JSON, gzip, base64, for a page from a folder may load only scripts."""
    content = json.dumps(payload(recording), separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def figures(choice: Choice, row: dict[str, Any]) -> dict[str, Any]:
    """What the panel says of a choice: rank 0's bytes, measured and by formula. Raises ValueError if they disagree."""
    unexplained = sum(row["state"].values()) - sum(row["formula"].values()) - sum(row["terms"].values())
    if unexplained:
        raise ValueError(f"{choice.name}: {unexplained} bytes are explained by no term; the page would say otherwise")
    undivided = theory.state_bytes("ddp", row["num_params"], 1, row["precision"])
    return {
        "parameters": row["num_params"],
        "precision": row["precision"],
        "state": row["state"],
        "formula": row["formula"],
        "terms": {name: bytes_ for name, bytes_ in row["terms"].items() if bytes_},
        "ddp": undivided,
        "peak": sum(row["peak"].values()),
        "sends": row["traffic"]["logical_bytes"],
        "formula_sends": round(row["traffic"]["formula_bytes"] * passes(choice)),
    }


def recorded(choices: list[Choice]) -> Iterator[tuple[Choice, str]]:
    """The scripts of choices that real ranks make, all of one N, on one group of processes."""
    with Cluster(choices[0].world_size, device="cpu") as cluster:
        for choice in choices:
            change = CHANGES[choice.change]
            made = cluster.record(partial(trained, choice))
            row = row_of(made, change.get("precision", "fp32"), 0.0)
            yield choice, as_script(choice, row, made)


def simulated(choices: list[Choice]) -> Iterator[tuple[Choice, str]]:
    """The scripts of choices beyond this box, on a fake rank: mixed precision, a sequence of 2,048 tokens."""
    for choice in choices:
        made = simulate(choice.stage, choice.world_size, choice.model, precision="bf16", length=2048)
        yield choice, as_script(choice, made.rows[0], made.recordings[choice.stage])


def as_script(choice: Choice, row: dict[str, Any], recording: Any) -> str:
    """The file of a choice: it hands itself to whoever asked for it."""
    content = {"name": choice.name, "figures": figures(choice, row), "packed": packed(recording)}
    return f"zerolabChoice({json.dumps(content, separators=(',', ':'))});\n"


def player() -> str:
    """The player as a classic script, for modules do not load from a folder: it leaves `zerolabPlayer` behind."""
    code = script().replace("export default { render };", "")
    return f"(() => {{\n{code}\nwindow.zerolabPlayer = {{ mount, bytes, PAYLOAD_VERSION }};\n}})();\n"


def write(out: Path, cache: Path, only: Iterable[str] | None = None) -> list[Choice]:
    """Writes the player and the choices into `out`, made anew only if the package or this file changed since.

    What `cache` has of an older package goes.

    `only`: parts of names; the panel says of the others that this build lacks them.
    """
    out.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(package_digest() + Path(__file__).read_bytes()).hexdigest()[:16]
    kept = cache / digest
    kept.mkdir(parents=True, exist_ok=True)
    for older in (folder for folder in cache.iterdir() if folder != kept):
        shutil.rmtree(older)
    chosen = [each for each in every() if only is None or any(part in each.name for part in only)]
    missing = [each for each in chosen if not (kept / f"{each.name}.js").exists()]
    for (is_real, ranks), some in groupby(missing, lambda each: (each.model in RECORDED, each.world_size)):
        what = "recording" if is_real else "simulating"
        print(f"the page to try: {what} on {ranks} ranks; {len(missing)} in all, minutes the first time", flush=True)
        for choice, text in (recorded if is_real else simulated)(list(some)):
            write_text(kept / f"{choice.name}.js", text)
    for choice in chosen:
        (out / f"{choice.name}.js").write_text((kept / f"{choice.name}.js").read_text())
    (out / "player.js").write_text(player())
    (out / "player.css").write_text(style())
    return chosen


def main(arguments: list[str]) -> int:
    """Makes all choices and says how large they are."""
    parser = argparse.ArgumentParser(description="make the recordings of the page that answers with recordings")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "choices")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "choices-kept")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="only those whose name has one of these parts")
    options = parser.parse_args(arguments)
    chosen = write(options.out, options.cache, options.only)
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"choices: {len(chosen)} recordings, {size / 1e6:.1f} MB with the player, in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
