"""Memory at its highest, by the ledger: parameters + gradients + optimizer + communication of the fullest rank."""

from collections.abc import Iterator
from importlib.util import find_spec

import workloads
from measuring import Figure
from workloads import DEEPSPEED, OWN, TORCH

from zerolab import Cluster

RANKS = 4
LARGE = ("mlp-bench", "gpt-10m")
MODELS = ("mlp-odd", "gpt-tiny", *LARGE)


def peaks(rounds: int) -> Iterator[Figure]:
    """Peak of parameters + gradients + optimizer + communication; measured once, for bytes do not vary."""
    del rounds
    for name in MODELS:
        systems = [*OWN, *TORCH] + (list(DEEPSPEED) if name in LARGE and find_spec("deepspeed") else [])
        samples = {variant: [float(_peak(variant, name))] for variant in systems}
        key, title = name.replace("-", "_"), f"Peak of a rank's model bytes, {name}, {RANKS} gloo ranks"
        text = "The highest sum of parameters, gradients, optimizer and communication in a step, of the fullest rank."
        yield Figure(f"peak_{key}", title, "bytes", "fsdp2", {"zero3": 1.0}, samples, note=text)
        stages = {variant: samples[variant] for variant in ("zero1", "zero2")}
        yield Figure(f"peak_{key}_zero2", f"{title}, zero2 against zero1", "bytes", "zero1", {"zero2": 1.0}, stages)


def _peak(variant: str, name: str) -> int:
    with Cluster(world_size=RANKS, device="cpu", timeout=120) as cluster:  # fresh: nothing of another system is left
        cluster.run(workloads.watch)
        found: list[int] = cluster.record(workloads.model_peak, variant, name, {}).results
    return max(found)
