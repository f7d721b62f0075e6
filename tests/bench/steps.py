"""The engine rows: a training step of this project's engines, torch's and DeepSpeed's, and how much of it is waiting.

Every variant's engine is made once and lives through all rounds, in ranks that only wait while another is measured:
our own and torch's together, DeepSpeed's in ranks of its own (it replaces parts of torch), and a third set of ranks
in which collectives send nothing. A step minus the same step there is exposed communication.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import workloads
from measuring import Figure, interleaved
from workloads import DEEPSPEED, OWN, TORCH

from zerolab import Cluster

RANKS = 4
SILENT = " silent"


def steps_mlp(rounds: int) -> Iterator[Figure]:
    """A training step of the benchmark MLP, and the communication in it."""
    budgets = {"zero1": 0.95, "zero2": 0.95, "zero3": 1.2}
    return _figures("mlp-bench", "steps_mlp", {"rows": 8}, rounds, budgets, exposed={}, fsdp2={"zero3": 0.5}, counted=3)


def steps_gpt(rounds: int) -> Iterator[Figure]:
    """A training step of gpt-10m with 8x128 tokens a rank, and the communication in it."""
    budgets, shape = {"zero1": 1.0, "zero2": 1.0, "zero3": 1.08}, {"rows": 8, "length": 128}
    return _figures("gpt-10m", "steps_gpt", shape, rounds, budgets, exposed={"zero3": 0.5}, fsdp2={}, counted=1)


def _figures(
    model: str,
    name: str,
    shape: dict[str, int],
    rounds: int,
    budgets: dict[str, float],
    *,
    exposed: dict[str, float],
    fsdp2: dict[str, float],
    counted: int,
) -> Iterator[Figure]:
    """Steps against torch DDP, and from the same rounds: against FSDP2 and DeepSpeed, exposed communication, share."""
    described = ", ".join(f"{what} {count}" for what, count in shape.items())
    title = f"AdamW step of {model}, {described} a rank, {RANKS} gloo ranks"
    loud, silent = _measured(model, shape, rounds, counted)
    without = "" if DEEPSPEED[0] in loud else "DeepSpeed: not run, it is not installed."
    yield Figure(name, title, "seconds", "torch-ddp", budgets, loud, note=without)
    sharded = {variant: loud[variant] for variant in ("fsdp2", "fsdp2-keep", "zero3")}
    yield Figure(f"{name}_fsdp2", f"{title}, against FSDP2", "seconds", "fsdp2", fsdp2, sharded)
    same = against_same_stage(loud)
    if same:
        limits = dict.fromkeys(same, 1.0)
        yield Figure(f"{name}_deepspeed", f"{title}, against DeepSpeed's same stage", "ratio", None, limits, same)
    difference = {variant: _each(loud[variant], silent[variant], share=False) for variant in silent}
    text = "A step minus the same step in which nothing is sent (what torch's fake group copies in memory stays)."
    about = f"{title}: exposed communication"
    yield Figure(f"{name}_exposed", about, "seconds", "fsdp2", exposed, difference, note=text)
    share = {variant: _each(loud[variant], silent[variant], share=True) for variant in silent}
    about = f"{title}: share of a step that is communication"
    yield Figure(f"{name}_share", about, "of a step", None, {}, share, note=text)


def against_same_stage(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    """Each own stage's seconds divided by those of DeepSpeed's same stage, round by round, where that was measured."""
    pairs = [(own, theirs) for own, theirs in zip(OWN, DEEPSPEED, strict=True) if theirs in samples]
    return {own: [mine / its for mine, its in zip(samples[own], samples[theirs], strict=True)] for own, theirs in pairs}


def _each(loud: list[float], silent: list[float], *, share: bool) -> list[float]:
    return [(step - quiet) / (step if share else 1) for step, quiet in zip(loud, silent, strict=True)]


def _measured(
    model: str, shape: dict[str, int], rounds: int, counted: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds by variant, and those of the same variants in silence; each the slowest rank's median of `counted`."""
    together, apart = (*OWN, *TORCH), DEEPSPEED if find_spec("deepspeed") else ()
    loud: dict[str, list[float]] = {}
    silent: dict[str, list[float]] = {}
    with ExitStack() as stack:
        ranks, quiet_ranks = (stack.enter_context(_cluster()) for _ in range(2))
        deepspeed_ranks = stack.enter_context(_cluster()) if apart else ranks
        quiet_ranks.run(workloads.silence)

        def measure(variant: str) -> float:
            stage = variant.removesuffix(SILENT)
            cluster = quiet_ranks if variant != stage else deepspeed_ranks if stage in DEEPSPEED else ranks
            return max(cluster.run(workloads.kept_step_seconds, stage, model, shape, counted))

        variants = [*together, *apart, *(stage + SILENT for stage in together)]
        for variant in variants:  # makes the engines; the first time is not measured
            measure(variant)
        for variant, seconds in interleaved(variants, rounds, measure):
            stage = variant.removesuffix(SILENT)
            (loud if stage == variant else silent).setdefault(stage, []).append(seconds)
    return loud, silent


def _cluster() -> Cluster:
    return Cluster(world_size=RANKS, device="cpu", timeout=120)
