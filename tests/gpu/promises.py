"""What the project promises about GPUs, one function a promise; `battery.py` runs each in a process of its own.

Each runs on `--device cpu`, too, as far as it can: that tries the promise's own code, and says nothing about a GPU.
"""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from promise import NotTestable, Promise, promise

from zerolab import Cluster, CollectiveHang, RankError, catalog, compare, models
from zerolab.engines import ENGINES
from zerolab.recording import card
from zerolab.runtime.trial import backend_of
from zerolab.theory import STAGES

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "bench"))
OTHERS = ("torch-ddp", "torch-zero1", "fsdp1", "fsdp2")
CLOSE = 1e-3  # of two losses, on a GPU and on a processor, which add in other orders
IMPATIENT = 4.0  # seconds: the `timeout` of clusters in which something shall wait, or seem to
SEVERAL_RANKS_A_GPU = (2, 30)  # the first NCCL that allows them, with NCCL_MULTI_RANK_GPU_ENABLE=1
LATE, LATE_SIZE = 0.5, 12_345  # seconds that a rank comes late, and elements that others wait for meanwhile
CLEARLY = 1.05  # of two times on one GPU box, what is more than noise
STEP_LIMIT = 1.05  # what a step of ours may take of plain PyTorch's, as in `make bench`


def train(stage: str, steps: int = 3, **options: Any) -> list[float]:
    """On a rank: some steps of gpt-tiny; this rank's losses."""
    engine = ENGINES[stage](models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3, **options)
    batches = models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), steps)
    return [engine.training_step(*batch, models.loss).item() for batch in batches]


def each(cases: Iterable[str], attempt: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """What was measured in all cases; one that fails keeps no other from being tried. Raises with all that failed."""
    figures, failed = {}, []
    for case in cases:
        try:
            figures |= attempt(case)
        except Exception as error:  # noqa: BLE001  (whatever it was, the other cases are still wanted)
            print(f"--- {case}:\n{error}\n", flush=True)
            failed.append(f"{case} ({type(error).__name__}: {str(error).partition(chr(10))[0]})")
    if failed:
        raise AssertionError("; ".join(failed))
    return figures


def trained_as_on_cpu(world_size: int, device: str, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Records each case on the device, and compares the losses of all ranks with those of torch's DDP on the CPU."""
    with Cluster(world_size, device="cpu") as processors:
        expected = processors.run(train, "torch-ddp")
    with Cluster(world_size, device=device, timeout=60) as cluster:
        over = cluster.run(backend_of, device)[0]

        def one(case: str) -> dict[str, Any]:
            recording = cluster.record(train, case.partition(" ")[0], **cases[case])
            assert recording.events, "nothing was recorded"
            pairs = zip(recording.results, expected, strict=True)
            off = max(abs(a - b) for mine, right in pairs for a, b in zip(mine, right, strict=True))
            assert off <= CLOSE, f"losses are {off:.2g} from those on the CPU"
            return {case: f"{off:.0e}"}

        return {"over": over} | each(cases, one)


@promise("One rank with a GPU of its own trains under every stage and torch's systems, recorded, as on the CPU", 120)
def alone(device: str) -> dict[str, Any]:
    found = trained_as_on_cpu(1, device, {stage: {} for stage in (*STAGES, *OTHERS)})
    assert found["over"] == ("nccl" if device == "cuda" else "gloo"), found["over"]
    return found


def pytests() -> Iterable[Promise]:
    """A promise for each file of tests in which some need a GPU: that those pass here."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if "mark.gpu" in file.read_text():
            name = file.relative_to(ROOT / "tests").as_posix()
            yield Promise(name, f"The tests for a GPU in {name} pass", 180, lambda _, file=file: passed(file))


def passed(file: Path) -> dict[str, Any]:
    """How many of a file's tests for a GPU pass. Raises if one fails, NotTestable if none could run."""
    if importlib.util.find_spec("pytest") is None:
        raise NotTestable("pytest is not installed")
    with tempfile.NamedTemporaryFile(suffix=".ini") as plain:  # the project's own settings ask for plugins
        command = [sys.executable, "-m", "pytest", "-c", plain.name, f"--rootdir={ROOT}", "-p", "no:cacheprovider"]
        # What the other tests share needs a browser or a notebook's kernel, which a box of GPUs may not have.
        command += ["--noconftest", "-m", "gpu", "-rs", "-q", str(file)]
        pipe, merged = subprocess.PIPE, subprocess.STDOUT  # a conftest that lacks a package says so on stderr
        ended = subprocess.run(command, stdout=pipe, stderr=merged, text=True, check=False, cwd=ROOT)
    print(ended.stdout)
    numbers = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", ended.stdout)}
    if ended.returncode or "passed" not in numbers:
        if absent := re.search(r"No module named '?(\w+)", ended.stdout):
            raise NotTestable(f"these tests need {absent[1]}")
        if "skipped" in numbers and not ended.returncode:
            raise NotTestable("pytest skips them all here")
        raise AssertionError(f"{numbers or 'pytest ended with'} {ended.returncode}")
    return numbers


globals().update({file.name: file for file in pytests()})


@promise("As many ranks as GPUs train over NCCL under every stage and torch's systems, recorded, as on the CPU", 120)
def every_gpu(device: str) -> dict[str, Any]:
    count = torch.cuda.device_count() if device == "cuda" else 2
    if count < 2:
        raise NotTestable("one GPU")
    return trained_as_on_cpu(count, device, {stage: {} for stage in (*STAGES, *OTHERS)})


@promise("Four ranks on one GPU train under every stage, with and without offload, as on the CPU", 120)
def shared(device: str) -> dict[str, Any]:
    only_one_gpu()
    cases = {f"{stage} {word}": {"offload": word == "offload"} for stage in STAGES for word in ("plain", "offload")}
    found = trained_as_on_cpu(4, device, cases)
    assert found["over"] == "gloo"
    return found


@promise("Four ranks on one GPU train under torch's systems as on the CPU", 90)
def shared_systems(device: str) -> dict[str, Any]:
    only_one_gpu()
    return trained_as_on_cpu(4, device, {stage: {} for stage in OTHERS})


def only_one_gpu() -> None:
    """From here on clusters take GPU 0 alone."""
    os.environ["ZEROLAB_DEVICES"] = "0"


@promise("Bytes at the update equal the formula once each term is named, with four ranks on one GPU", 90)
def formula(device: str) -> dict[str, Any]:
    only_one_gpu()
    found = compare(STAGES, 4, "gpt-tiny", steps=3, device=device)
    left = {row["stage"]: unexplained(row) for row in found.rows}
    assert not any(left.values()), f"unexplained bytes: {left}"
    return {row["stage"]: f"{sum(row['state'].values())} bytes" for row in found.rows}


def unexplained(row: dict[str, Any]) -> int:
    """Bytes of a comparison's row that neither the formula nor a named term explains."""
    return int(sum(row["state"].values()) - sum(row["formula"].values()) - sum(row["terms"].values()))


@promise("bf16 and fp16 train on a GPU: losses near those of fp32", 90)
def precisions(device: str) -> dict[str, Any]:
    only_one_gpu()
    with Cluster(2, device=device, timeout=60) as cluster:
        right = cluster.run(train, "ddp")[0][0]

        def one(case: str) -> dict[str, Any]:
            stage, precision = case.split()
            first = cluster.run(train, stage, precision=precision)[0][0]
            assert abs(first - right) <= 0.05, f"the first loss is {first:.4f}, and {right:.4f} in fp32"
            return {case: round(first, 4)}

        return each([f"{stage} {kind}" for stage in ("ddp", "zero3") for kind in ("bf16", "fp16")], one)


@promise(
    "No stage reads or writes a tensor that another stream is still writing, as torch's CUDA sanitizer sees it", 120
)
def sanitizer(device: str) -> dict[str, Any]:
    if device == "cpu":
        raise NotTestable("the sanitizer watches streams, and the CPU has none")
    with Cluster(1, device=device, timeout=60) as cluster:
        cases = {f"{stage} {word}": {"offload": word == "offload"} for stage in STAGES for word in ("plain", "offload")}
        return each(cases, lambda case: {case: cluster.run(sanitized, case.partition(" ")[0], **cases[case])[0]})


def sanitized(stage: str, **options: Any) -> str:
    """On a rank: trains under the sanitizer, which raises where streams race."""
    from torch.cuda import _sanitizer

    if not _sanitizer.cuda_sanitizer.enabled:
        _sanitizer.enable_cuda_sanitizer()
    train(stage, **options)
    torch.cuda.synchronize()
    return "no race"


@promise("A device-side assert is a RankError with the Python exception in it, and the next call works", 60)
def device_assert(device: str) -> dict[str, Any]:
    found = {}
    only_one_gpu()
    for world_size in (1, 2):  # over NCCL, whose watchdog sees the error too, and over gloo
        with Cluster(world_size, device=device) as cluster:
            error = error_of(cluster, RankError, beyond_the_end, device)
            assert error.rank == world_size - 1, f"rank {error.rank} is blamed"
            assert error.exception, f"it died of {error.signal}, and its exception is not known"
            assert cluster.run(dist.get_rank) == list(range(world_size)), "the next call"
            found[f"{world_size} ranks"] = error.exception
    return found


def error_of(cluster: Cluster, kind: type[RankError], function: Callable[..., Any], *arguments: Any) -> RankError:
    """The error with which a call ends; AssertionError if it returns."""
    try:
        cluster.run(function, *arguments)
    except kind as error:
        print(error, flush=True)
        return error
    raise AssertionError("the call returned")


def beyond_the_end(device: str) -> float:
    """On the last rank: an index that the kernel finds too large."""
    numbers = torch.ones(4, device=device)
    index = 9 if dist.get_rank() == dist.get_world_size() - 1 else 0
    picked = numbers[torch.tensor([index], device=device)].sum()
    dist.all_reduce(picked)
    return picked.item()


class Slow(torch.autograd.Function):
    """A backward that takes its time: in one long kernel, or in many short ones."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, how: str) -> torch.Tensor:
        ctx.how = how
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        end = time.monotonic() + 2 * IMPATIENT
        while time.monotonic() < end:
            if ctx.how == "one long kernel" and gradient.is_cuda:
                torch.cuda._sleep(int(2 * IMPATIENT * 2e9))  # cycles of about 2 GHz
            (gradient @ gradient.T).sum().item()
        return gradient, None


@promise("A backward that takes longer than `timeout` is no hang", 90)
def long_backward(device: str) -> dict[str, Any]:
    only_one_gpu()
    with Cluster(2, device=device, timeout=IMPATIENT) as cluster:

        def one(how: str) -> dict[str, Any]:
            start = time.monotonic()
            assert cluster.run(slow_on_one_rank, device, how) == [2.0, 2.0]
            return {how: f"{time.monotonic() - start:.0f} s"}

        return each(("many short kernels", "one long kernel"), one)


def slow_on_one_rank(device: str, how: str) -> float:
    """On a rank: rank 1 has a long backward, for which rank 0 waits in an all_reduce."""
    x = torch.ones(8, 8, device=device, requires_grad=True)
    if dist.get_rank() == 1:
        Slow.apply(x, how).sum().backward()
    one = torch.ones(1, device=device)
    dist.all_reduce(one)
    return one.item()


@promise("Ranks on one GPU that wait for each other are reported, by the name of the collective", 60)
def hang(device: str) -> dict[str, Any]:
    only_one_gpu()
    return hanging(2, device)


@promise("Ranks with a GPU each that wait for each other over NCCL are reported, by the name of the collective", 60)
def hang_nccl(device: str) -> dict[str, Any]:
    if device == "cuda" and torch.cuda.device_count() < 2:
        raise NotTestable("one GPU")
    return hanging(2, device)


def hanging(world_size: int, device: str) -> dict[str, Any]:
    """How soon a collective that only rank 0 calls is reported, whether or not it looks at the result."""
    with Cluster(world_size, device=device, timeout=IMPATIENT) as cluster:

        def one(case: str) -> dict[str, Any]:
            start = time.monotonic()
            error = error_of(cluster, CollectiveHang, only_rank_0, device, case == "result read")
            seconds = time.monotonic() - start
            assert "all_reduce" in error.collective, error.collective
            assert cluster.run(dist.get_rank) == list(range(world_size)), "the next call"
            return {case: f"{seconds:.0f} s"}

        return each(("result read", "result not read"), one)


def only_rank_0(device: str, read: bool) -> None:
    """On a rank: an all_reduce without the others."""
    if dist.get_rank() == 0:
        one = torch.ones(1, device=device)
        dist.all_reduce(one)
        if read:
            one.item()


@promise(
    "Several NCCL ranks on one GPU train under every stage and torch's systems, and a hang of theirs is named", 150
)
def nccl_many(device: str) -> dict[str, Any]:
    if device == "cuda":
        version = torch.cuda.nccl.version()[:2]
        if version < SEVERAL_RANKS_A_GPU:
            raise NotTestable(f"NCCL is {version[0]}.{version[1]}; several ranks of one GPU need 2.30")
    only_one_gpu()
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    found = trained_as_on_cpu(2, device, {stage: {} for stage in (*STAGES, *OTHERS)})
    assert found["over"] == ("nccl" if device == "cuda" else "gloo"), found["over"]
    return found | hanging(2, device)


@promise("A notebook that has used its GPU can start ranks on it", 60)
def after_the_notebook(device: str) -> dict[str, Any]:
    kept = torch.ones(1000, device=device)
    with Cluster(2, device=device) as cluster:
        sums = cluster.run(add_up, device)
    assert sums == [1.0, 1.0], sums
    return {"the notebook's tensor": kept.sum().item()}


def add_up(device: str) -> float:
    """On a rank: the sum of all ranks' numbers."""
    mine = torch.tensor(float(dist.get_rank()), device=device)
    dist.all_reduce(mine)
    return mine.item()


@promise("Ranks that share a GPU give what they cached back after each call", 60)
def cache(device: str) -> dict[str, Any]:
    if device == "cpu":
        raise NotTestable("the CPU's allocator keeps no cache")
    only_one_gpu()
    with Cluster(2, device=device) as cluster:
        reserved = cluster.run(take_and_drop)
        left = cluster.run(torch.cuda.memory_reserved)
    assert min(reserved) >= 2**28
    assert max(left) <= 2**26, f"{max(left) / 2**20:.0f} MiB are still reserved"
    return {"MiB reserved in the call": reserved[0] >> 20, "after it": left[0] >> 20}


def take_and_drop() -> int:
    """On a rank: bytes reserved after 256 MiB were taken and dropped."""
    torch.empty(2**28, dtype=torch.uint8, device="cuda")
    return torch.cuda.memory_reserved()


@promise("The ledger counts what the GPU's allocator gives out, up to 512 bytes a block", 90)
def memory(device: str) -> dict[str, Any]:
    if device == "cpu":
        raise NotTestable("the CPU's allocator keeps no count")
    import workloads

    only_one_gpu()
    before = torch.cuda.mem_get_info()[0]
    with Cluster(2, device=device, timeout=60) as cluster:
        context = (before - cluster.run(free_bytes)[0]) / 2
        cluster.run(workloads.watch)

        def one(stage: str) -> dict[str, Any]:
            ranks = cluster.record(workloads.gpu_bytes, stage, "gpt-10m").results
            beyond = max(abs(allocated - counted) / max(blocks, 1) for allocated, counted, blocks in ranks)
            assert beyond <= 512, f"{beyond:.0f} bytes a block beyond the ledger"
            return {stage: f"{beyond:.0f} bytes a block"}

        return {"MiB a rank before its first tensor": round(context / 2**20)} | each(STAGES, one)


@promise("In each step a GPU's bytes are a sum of named terms, none of them negative, and offload lowers the peak", 120)
def terms(device: str) -> dict[str, Any]:
    cases = {f"{stage} {word}": {"offload": word == "offload"} for stage in STAGES for word in ("plain", "offload")}
    peaks = {}
    with Cluster(1, device=device, timeout=60) as cluster:

        def one(case: str) -> dict[str, Any]:
            info = cluster.record(train, case.partition(" ")[0], **cases[case]).ranks[0].info
            assert (info.device, len(info.card)) == (device, info.steps if device == "cuda" else 0)
            peaks[case] = info.peak_total
            return {case: summed(info.card) if info.card else "no card"}

        found = each(cases, one)
    if device == "cpu":
        raise NotTestable("the CPU's allocator keeps no count")
    for stage in STAGES:
        assert peaks[f"{stage} offload"] < peaks[f"{stage} plain"], peaks
    return found


def summed(steps: list[dict[str, int]]) -> str:
    """The named terms of the last step, in MiB, after each step's figures were found to contain one another."""
    for figures in steps:
        order = [figures["ledger"] + figures["older"], figures["requested"], figures["allocated"], figures["reserved"]]
        # Single numbers that torch's kernels take as arguments are the ledger's to a few bytes.
        assert all(few <= many + 64 for few, many in itertools.pairwise(order)), figures
        assert figures["reserved"] <= (figures["process"] or figures["used"]) <= figures["total"], figures
    named = card.terms(steps[-1])
    return ", ".join(f"{name} {nbytes / 2**20:.1f}" for name, nbytes in named.items())


@promise("What nvidia-smi prints for a rank is the sum of the named terms, to the MiB that it rounds to", 60)
def nvidia_smi(device: str) -> dict[str, Any]:
    if device == "cpu":
        raise NotTestable("nvidia-smi speaks of GPUs")
    from zerolab.runtime.machine import ask_driver

    with Cluster(1, device=device, timeout=60) as cluster:
        last = cluster.record(train, "zero2").ranks[0].info.card[-1]
        (pid,) = cluster.run(os.getpid)
        answer = ask_driver("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    # Where the driver does not tell, it prints a sentence in place of the rows.
    printed = {number: used.strip() for number, _, used in (line.partition(",") for line in answer.splitlines())}
    if last["process"] is None or not printed.get(str(pid), "").isdigit():
        raise NotTestable(f"the driver tells of no process {pid} (a container?); the card has {last['used']} in use")
    mebibytes = int(printed[str(pid)])
    off = mebibytes * 2**20 - sum(card.terms(last).values())
    assert abs(off) <= 2**21, f"nvidia-smi prints {mebibytes} MiB, {off} bytes more than {card.terms(last)}"
    return {"MiB": mebibytes, "bytes beyond the terms": off}


SOLD_AS = {
    "v100": "V100-SXM2-32GB",
    "a100-40gb": "A100-SXM4-40GB",
    "a100": "A100-SXM4-80GB",
    "a800": "A800-SXM4-80GB",
    "h100": "H100 80GB HBM3",
    "h200": "H200",
    "b200": "B200",
}
"""The catalog's cards by a part of the name that torch gives them."""


@promise("The catalog's size of this card is what the driver says, to one percent", 60)
def size(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name(0) if device == "cuda" else "the CPU"
    known = next((each for each, sold_as in SOLD_AS.items() if name.endswith(sold_as)), None)
    if known is None:
        raise NotTestable(f"{name} is not in the catalog")
    total, listed = torch.cuda.mem_get_info(0)[1], catalog.gpu(known).memory_bytes
    assert abs(total - listed) <= 0.01 * total, f"{name} has {total} bytes, and the catalog {listed:.0f}"
    return {"GiB": round(total / 2**30, 2), "in the catalog": round(listed / 2**30, 2)}


def free_bytes() -> int:
    """On a rank: what is free on its GPU."""
    return torch.cuda.mem_get_info()[0]


@promise("A recording tells when a GPU computed, as torch's own events do, and not when it was asked to", 60)
def gpu_times(device: str) -> dict[str, Any]:
    with Cluster(1, device=device, timeout=60) as cluster:
        recordings = {how: getattr(cluster, how)(multiply, device) for how in ("record", "record_times")}
    found = {}
    for how, recording in recordings.items():
        *_, forward = [event for event in recording.events if event.op == "forward" and event.unit == "root"]
        asked, took = forward.t_end - forward.t_start, forward.interval[1] - forward.interval[0]
        (expected,) = recording.results
        found |= {f"{how}, of torch's": round(took / 1e6 / expected, 3), f"{how}, asked in": round(asked / took, 3)}
        if device == "cuda":
            assert forward.stream == "compute", forward.stream
            assert abs(took / 1e6 - expected) < 0.05 * expected + 0.1, f"{took / 1e6:.2f} ms, torch says {expected:.2f}"
            assert asked < 0.5 * took, "the host was not ahead, so this shows nothing"
    return found


def multiply(device: str) -> float:
    """On a rank: its second forward of many products, measured by torch's events; milliseconds."""
    size, often = (8192, 40) if device == "cuda" else (256, 4)
    model = torch.nn.Sequential(*[torch.nn.Linear(size, size, bias=False, device=device)] * often)
    rows = torch.ones(size, size, device=device)
    model(rows)  # the first finds the fastest kernel
    with torch.no_grad():
        begin = time.perf_counter()
        if device != "cuda":
            model(rows)
            return (time.perf_counter() - begin) * 1e3
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        model(rows)
        marks[1].record()
        torch.cuda.synchronize()
        return float(marks[0].elapsed_time(marks[1]))


@promise("Over NCCL a recording tells how long a GPU waited for another, and how long the collective took", 60)
def nccl_times(device: str) -> dict[str, Any]:
    if device == "cuda" and torch.cuda.device_count() < 2:
        raise NotTestable("one GPU")
    with Cluster(2, device=device, timeout=60) as cluster:
        recordings = {how: getattr(cluster, how)(wait_for_rank_1, device) for how in ("record", "record_times")}
    found = {}
    for how, recording in recordings.items():
        events = {event.kind: event for event in recording.rank(0).events if event.numel == LATE_SIZE}
        for kind in ("collective", "wait"):
            start, end = events[kind].interval
            found[f"{how}, {kind}"] = round((end - start) / 1e9, 3)
            assert (end - start) / 1e9 > LATE / 2, found
            assert device == "cpu" or events[kind].stream is not None
            assert device == "cpu" or events[kind].t_end - events[kind].t_start < LATE * 1e9 / 2, "the host waited"
    return found


def wait_for_rank_1(device: str) -> None:
    """On a rank: an all_reduce for which rank 1 comes late, and a wait for it that no host notices."""
    numbers = torch.ones(LATE_SIZE, device=device)
    dist.all_reduce(torch.ones(1, device=device))  # makes the communicator, and is awaited below
    if device == "cuda":
        torch.cuda.synchronize()
    if dist.get_rank() == 1:
        time.sleep(LATE)
    dist.all_reduce(numbers, async_op=True).wait()


@promise(f"A step of gpt-10m on one GPU takes at most {STEP_LIMIT} of plain PyTorch's", 150)
def speed(device: str) -> dict[str, Any]:
    import workloads
    from measuring import interleaved

    shape, variants = {"rows": 8, "length": 128}, (*STAGES, "torch-ddp", "fsdp2")
    call, rounds = (("gpt-10m", shape, 3, 20), 5) if device == "cuda" else (("gpt-tiny", {"rows": 1}, 1, 1), 1)
    seconds: dict[str, list[float]] = {}
    with Cluster(1, device=device, timeout=60) as cluster:

        def measure(variant: str) -> float:
            if variant == "plain":
                return float(cluster.run(workloads.plain_step_seconds, *call)[0])
            return float(cluster.run(workloads.gpu_step_seconds, variant, *call)[0])

        for variant, taken in interleaved(["plain", *variants], rounds, measure):
            seconds.setdefault(variant, []).append(taken)
    ratios = {name: round(median(map(float.__truediv__, seconds[name], seconds["plain"])), 3) for name in variants}
    slow = {stage: ratios[stage] for stage in STAGES if ratios[stage] > STEP_LIMIT}
    print(ratios)
    if device == "cpu":
        raise NotTestable("the limit is a GPU's, and what ran here was a smaller model")
    assert not slow, f"of plain PyTorch's seconds: {slow} (all: {ratios})"
    return {"plain, ms": round(1e3 * median(seconds["plain"]), 2)} | ratios


@promise("DeepSpeed trains on a GPU that a rank has to itself, and where four ranks share one, as on the CPU", 120)
def deepspeed(device: str) -> dict[str, Any]:
    if importlib.util.find_spec("deepspeed") is None:
        raise NotTestable("DeepSpeed is not installed")
    only_one_gpu()
    stages: dict[str, dict[str, Any]] = {f"deepspeed-{number}": {} for number in range(4)}
    return trained_as_on_cpu(1, device, stages) | {
        f"shared, {name}": value for name, value in trained_as_on_cpu(4, device, stages).items()
    }


@promise(
    "Over NCCL gathers and reductions have a group each, and updated parameters are waited for where they are used", 60
)
def schedule(device: str) -> dict[str, Any]:
    with Cluster(1, device=device, timeout=60) as cluster:
        found = {stage: cluster.run(scheduled, stage)[0] for stage in ("zero1", "zero2")}
    if device == "cpu":
        raise NotTestable("over gloo there is one group, and a step waits for what it sends")
    for stage, (groups, flats, left, off) in found.items():
        assert groups == 1, f"{stage}: {groups} second groups"
        assert left == flats, f"{stage}: {flats - left} of {flats} flats were waited for in the step"
        assert off == 0, f"{stage}: a parameter read after the step is {off:.2g} from the state"
    return {stage: f"{flats} flats on their way after a step" for stage, (_, flats, _, _) in found.items()}


def scheduled(stage: str) -> tuple[int, int, int, float]:
    """On a rank, after a step: second groups, flats, those that nobody has waited for; how far a read one is off."""
    from zerolab.engines import collectives
    from zerolab.engines.flat import Presence

    engine = ENGINES[stage](models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3)
    batch = models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), 1)[0]
    engine.training_step(*batch, models.loss)
    left = sum(flat.presence is Presence.ARRIVING for flat in engine.flats)
    name, parameter = list(engine.model.named_parameters())[-1]
    read = parameter.detach().clone()
    off = (read - engine.state_dict()[name]).abs().max().item()
    return len(collectives._second_groups), len(engine.flats), left, off


@promise("A step over NCCL takes no longer by the late waits made for it than by the early ones made for gloo", 150)
def late_waits(device: str) -> dict[str, Any]:
    from measuring import interleaved

    count, rounds = several_gpus(device), 5 if device == "cuda" else 1
    seconds: dict[str, list[float]] = {}
    with Cluster(count, device=device, timeout=60) as cluster:
        variants = [f"{stage} {waits}" for stage in STAGES for waits in ("early", "late")]
        for variant, taken in interleaved(variants, rounds, lambda each: cluster.run(step_by, each)[0]):
            seconds.setdefault(variant, []).append(taken)
    ratios = {
        stage: round(median(map(float.__truediv__, seconds[f"{stage} late"], seconds[f"{stage} early"])), 3)
        for stage in STAGES
    }
    print(ratios)
    if device == "cpu":
        raise NotTestable("over gloo there is one schedule, and late waits are not for it")
    slow = {stage: ratio for stage, ratio in ratios.items() if ratio > CLEARLY}
    assert not slow, f"of the seconds by early waits: {slow} (all: {ratios})"
    return ratios


def several_gpus(device: str) -> int:
    """How many ranks have a GPU each; two on processors. Raises NotTestable for one GPU."""
    count = torch.cuda.device_count() if device == "cuda" else 2
    if count < 2:
        raise NotTestable("one GPU")
    return count


_made: dict[str, Any] = {}  # on a rank: engines live through all rounds


def step_by(variant: str) -> float:
    """On a rank: median seconds of a step of a stage, with waits as over gloo (early) or as over NCCL (late)."""
    from unittest.mock import patch

    from zerolab.engines import reduction

    stage, waits = variant.split()
    name = "gpt-10m" if torch.cuda.is_available() else "gpt-tiny"
    if variant not in _made:
        with patch.object(reduction, "has_streams", lambda _: waits == "late"):
            _made[variant] = ENGINES[stage](models.build(name), torch.optim.AdamW, lr=1e-3)
    seconds = []
    for batch in models.batches(name, dist.get_world_size(), dist.get_rank(), 8):
        start = time.perf_counter()
        _made[variant].training_step(*batch, models.loss).item()
        seconds.append(time.perf_counter() - start)
    return median(seconds[2:])


@promise("Shards over NCCL begin at multiples of 16 bytes, in fp32 and bf16, whatever the model's widths", 60)
def alignment(device: str) -> dict[str, Any]:
    count = several_gpus(device)
    with Cluster(count, device=device, timeout=60) as cluster:
        offsets = [cluster.run(offsets_of_shards, precision)[0] for precision in ("fp32", "bf16")]
        aligned, odd = (cluster.run(gather_seconds, part, device)[0] for part in (2**24, 2**24 + 1))
    if device == "cpu":
        raise NotTestable("over gloo shards lie at any address")
    assert not any(map(any, offsets)), f"shards begin at {offsets} bytes behind a multiple of 16"
    # What it is for: not promised, because nobody has measured it yet.
    return {"gather at odd addresses / aligned": round(odd / aligned, 3)}


def offsets_of_shards(precision: str) -> list[int]:
    """On a rank: of each shard of an odd model, how many bytes behind a multiple of 16 it begins where it is sent."""
    model = models.build("mlp-odd")
    engine = ENGINES["zero2"](model, torch.optim.AdamW, lr=1e-3, precision=precision)
    return [flat.part(flat.whole).data_ptr() % 16 for flat in engine.flats]


def gather_seconds(part: int, device: str) -> float:
    """On a rank: median seconds of a gather of `part` 2-byte elements from each rank."""
    from zerolab.engines.collectives import all_gather

    flat = torch.zeros(dist.get_world_size() * part, dtype=torch.bfloat16, device=device)
    seconds = []
    for _ in range(20):
        dist.barrier()
        start = time.perf_counter()
        all_gather(flat).wait()
        flat[0].item()
        seconds.append(time.perf_counter() - start)
    return median(seconds[5:])


@promise("With offload the optimizer's copies, and the gradients on their way to them, lie in pinned memory", 60)
def pinned(device: str) -> dict[str, Any]:
    if device == "cpu":
        raise NotTestable("pinned memory is for copies to and from a GPU")
    with Cluster(1, device=device, timeout=60) as cluster:
        return {stage: cluster.run(copied, stage)[0] for stage in ("ddp", "zero2", "zero3")}


def copied(stage: str) -> str:
    """On a rank: how fast an offloaded optimizer's gradients come. Raises if anything of it is not pinned."""
    engine = ENGINES[stage](models.build("gpt-10m"), torch.optim.SGD, lr=1e-3, offload=True)
    flat = max(engine.flats, key=lambda flat: flat.owned.numel())
    assert flat.owned.is_pinned(), "the optimizer's copy is not pinned"
    mean = torch.ones_like(flat.shard)
    assert flat.way.end(mean, flat.owned).is_pinned(), "the gradient's copy is not pinned"
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        flat.way.end(mean, flat.owned)
    return f"{10 * mean.nbytes / (time.perf_counter() - start) / 1e9:.1f} GB/s"


@promise(
    "Over NCCL an offloaded gradient leaves while the backward goes on, and the update waits for the last alone", 120
)
def leaving(device: str) -> dict[str, Any]:
    with Cluster(1, device=device, timeout=60) as cluster:
        found = {stage: cluster.run(sent_early, stage)[0] for stage in ("ddp", "zero2", "zero3")}
    if device == "cpu":
        raise NotTestable("on the CPU the optimizer is where the gradients are")
    for stage, (early, flats, off, late) in found.items():
        assert early == flats, f"{stage}: {early} of {flats} gradients had left at the backward's end"
        assert off == 0, f"{stage}: a copy is {off:.2g} from its gradient"
        assert late <= CLEARLY, f"{stage}: a step takes {late:.2f} of one whose gradients leave at the update"
    return {f"{stage}, step / leaving at the update": round(late, 3) for stage, (*_, late) in found.items()}


def sent_early(stage: str) -> tuple[int, int, float, float]:
    """On a rank: means that have left after a backward, flats, how far copies are off; step / one that sends late."""
    from unittest.mock import patch

    from zerolab.engines.offload import Way

    name = "gpt-10m" if torch.cuda.is_available() else "gpt-tiny"
    engine = ENGINES[stage](models.build(name), torch.optim.SGD, lr=1e-3, offload=True)
    batch = models.batches(name, dist.get_world_size(), dist.get_rank(), 1)[0]
    engine.backward(models.loss(engine.model(batch[0]), batch[1]))
    left = [(flat.mean, flat.way.leaving) for flat in engine.trainable if flat.way.leaving is not None]
    off = max((float((mean.cpu() - departure.arrived()).abs().max()) for mean, departure in left), default=0.0)
    early, flats = len(left), len(engine.trainable)
    left.clear()
    engine.step()

    def seconds() -> float:
        taken = []
        for _ in range(8 if torch.cuda.is_available() else 3):
            start = time.perf_counter()
            engine.training_step(*batch, models.loss).item()
            taken.append(time.perf_counter() - start)
        return median(taken[2:])

    as_it_is = seconds()
    with patch.object(Way, "send", lambda *_: None):
        at_the_update = seconds()
    return early, flats, off, as_it_is / at_the_update


@promise(
    "Ranks that ask NCCL for two reductions of one size in different orders are told so, by rank, name and line", 60
)
def same_order(device: str) -> dict[str, Any]:
    count = several_gpus(device)
    with Cluster(count, device=device, timeout=IMPATIENT) as cluster:
        if device == "cpu":
            cluster.run(swapped, device)
            raise NotTestable("gloo's messages have names, and none is taken for another")
        error = error_of(cluster, RankError, swapped, device)
        assert not isinstance(error, CollectiveHang), "it was found as a hang only"
        assert "'first'" in error.what, error.what
        assert "in its place" in error.what, error.what
        assert cluster.run(dist.get_rank) == list(range(count)), "the next call"
    return {"told": error.what.partition(": ")[2]}


def swapped(device: str) -> None:
    """On a rank: two reductions, on the last rank the other way round."""
    from zerolab.engines.collectives import reduce_scatter

    flats = {name: torch.ones(8 * dist.get_world_size(), device=device) for name in ("first", "second")}
    is_last = dist.get_rank() == dist.get_world_size() - 1
    for exchange in [reduce_scatter(flats[name], name=name) for name in sorted(flats, reverse=is_last)]:
        exchange.wait()


@promise("A ring of messages comes round in one batch over NCCL, and one whose ranks all send first is named", 60)
def ring(device: str) -> dict[str, Any]:
    count = several_gpus(device)
    with Cluster(count, device=device, timeout=IMPATIENT) as cluster:
        expected = [float((rank - 1) % count) for rank in range(count)]
        assert cluster.run(handed_on, device, True) == expected
        if device == "cpu":
            assert cluster.run(handed_on, device, False) == expected
            raise NotTestable("over gloo a send waits for nobody")
        if count < 3:
            return {"in one batch": "came round", "each by itself": "not testable with two GPUs"}
        error = error_of(cluster, CollectiveHang, handed_on, device, False)
        assert "isend" in error.collective, error.collective
        return {"in one batch": "came round", "each by itself": error.what.partition(") ")[2]}


def handed_on(device: str, batched: bool) -> float:
    """On a rank: what came from the rank on the left."""
    rank, count = dist.get_rank(), dist.get_world_size()
    mine, received = torch.full((4,), float(rank), device=device), torch.empty(4, device=device)
    if batched:
        both = [dist.P2POp(dist.isend, mine, (rank + 1) % count), dist.P2POp(dist.irecv, received, (rank - 1) % count)]
        works = dist.batch_isend_irecv(both)
    else:
        works = [dist.isend(mine, (rank + 1) % count), dist.irecv(received, (rank - 1) % count)]
    for work in works:
        work.wait()
    return received[0].item()


@promise("`zerolab doctor` finds nothing to repair about the GPUs", 120)
def doctor(device: str) -> dict[str, Any]:
    from zerolab import doctor

    checks = doctor.check_ranks_on_gpus(device)
    if bad := [f"{check['found']}: {check['remedy']}" for check in checks if not check["ok"]]:
        raise AssertionError("; ".join(bad))
    return {check["name"]: check["found"] for check in checks}
