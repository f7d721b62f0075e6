"""Others who count memory, beside the ledger: the process, torch's MemTracker, the GPU's allocator.

torch's CPU allocator is compared in test_exactness.py, to the byte.
"""

import gc
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerolab import Cluster, models
from zerolab.engines import ENGINES

FIFTY_MILLION = (6, 1020)  # blocks, and the width that makes them 6 x 8 width² + ... = 50 million parameters
RANKS = 2


def blocks(number, width):
    """The benchmark MLP in another size, all parameters one small number: random ones would take seconds."""
    with torch.device("meta"):
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(number))
        )
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1 / (2 * width))
    return model


def unique_bytes():
    """Memory that is this process's alone (USS): Linux counts pages."""
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(fields[name].split()[0]) * 1024 for name in ("Private_Clean", "Private_Dirty"))


def state_by_process(stage, shape):
    """On a rank: bytes that the process and the ledger hold more after two steps than before there was a model.

    glibc keeps what is freed for later, and raises the size from which it gives memory back at once (M_MMAP_THRESHOLD)
    as it goes. So that size is fixed, as low as a page's worth of numbers, and what is kept is handed back
    (malloc_trim) before each look. One small step comes first: libraries make their own buffers in it.
    """
    import ctypes

    from zerolab.recording.recorder import Recorder

    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 64 * 1024)  # M_MMAP_THRESHOLD

    def train(model, width, steps):
        engine = ENGINES[stage](model, torch.optim.AdamW, lr=1e-3)
        for _ in range(steps):
            engine.training_step(torch.ones(2, width), torch.ones(2, width), models.loss)
        return engine

    def look():
        gc.collect()
        libc.malloc_trim(0)
        return unique_bytes()

    number, width = shape
    train(blocks(2, 32), 32, 2)
    before = look()
    with Recorder() as recorder:
        engine = train(blocks(number, width), width, 2)
        ledger = recorder.ledger
        ledger.settle()
        counted, after = ledger.host.total, look()
    return after - before, counted, sum(flat.layout.numel for flat in engine.flats)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["zero1", "zero3"])
def test_the_process_has_grown_by_what_the_ledger_counts_within_three_percent(require, stage):
    require(Path("/proc/self/smaps_rollup").exists(), "a count of a process's own pages", "take Linux 4.14 or newer")
    with Cluster(world_size=RANKS, device="cpu") as cluster:
        for grown, counted, num_params in cluster.run(state_by_process, stage, FIFTY_MILLION):
            assert num_params > 49e6
            per_parameter = {"zero1": 4 + 8 / RANKS, "zero3": 12 / RANKS}[stage]  # gradients are gone after a step
            assert counted == pytest.approx(per_parameter * num_params, rel=0.001)
            assert grown == pytest.approx(counted, rel=0.03)


def tracked(stage):
    """On a rank: bytes at the last update, by torch's tracker of FSDP2 and by the ledger."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from zerolab.recording.recorder import Recorder

    def train(engine, after_step=lambda: None):
        for _ in range(2):
            engine.training_step(torch.ones(2, 32), torch.ones(2, 32), models.loss)
            after_step()

    def make():
        return ENGINES[stage](blocks(3, 32), torch.optim.AdamW, lr=1e-3)

    with Recorder() as recorder:
        train(make())
    engine, snapshots = make(), []
    tracker = FSDPMemTracker(engine.model, engine.optimizer)
    handle = register_optimizer_step_pre_hook(lambda *_: snapshots.append(tracker.get_tracker_snapshot("current")))
    with tracker, gloo_has_let_go():
        train(engine, tracker.reset_mod_stats)
    handle.remove()
    info = recorder.finish().info
    return by_name(snapshots[-1]), info.state, by_name(tracker.get_tracker_snapshot("peak")), info.peak


@contextmanager
def gloo_has_let_go():
    """Returns from a wait a moment late: gloo's own thread holds what it sent until just after it says that it is done.

    Without that the tracker's peak has an exchange's buffer more in one run of three, as the threads happen to run.
    """
    wait = dist.Work.wait

    def wait_and_a_moment(work, *arguments):
        done = wait(work, *arguments)
        time.sleep(0.02)
        return done

    dist.Work.wait = wait_and_a_moment
    try:
        yield
    finally:
        dist.Work.wait = wait


def by_name(snapshot):
    """The tracker's bytes on the CPU by the names of its categories."""
    return {str(getattr(kind, "value", kind)): size for kind, size in snapshot[torch.device("cpu")].items()}


@pytest.fixture(scope="module")
def by_torch_and_by_us(cluster):
    """From each rank: state by torch's tracker and by the ledger, and the peak by both."""
    return cluster.run(tracked, "fsdp2")


@pytest.mark.slow
def test_torchs_tracker_of_fsdp2_counts_the_same_state_to_the_byte(by_torch_and_by_us):
    for theirs, ours, _, _ in by_torch_and_by_us:
        names = {"parameters": "Sharded Param", "gradients": "Sharded Grad", "optimizer_state": "OptState"}
        assert ours == {category: theirs[name] for category, name in names.items()}


NUMBER = 12  # bytes: `x / 2` makes a tensor of the number, and another in the type of x; no operation shows them


@pytest.mark.slow
def test_its_peak_is_the_ledgers_but_for_numbers_that_torch_makes_tensors_of_and_the_names_of_temporaries(
    by_torch_and_by_us,
):
    for _, _, theirs, ours in by_torch_and_by_us:
        assert 0 <= sum(ours.values()) - theirs["Total"] <= NUMBER
        assert ours["parameters"] == theirs["Sharded Param"] + theirs["Unsharded Param"]
        assert ours["communication"] == theirs["All Gather"] + theirs["Reduce Scatter"]
        # What turns out to be a gradient is one from its birth in the ledger; the tracker calls it temporary till then.
        assert ours["gradients"] > theirs["Sharded Grad"] + theirs["Unsharded Grad"]


def test_a_rank_that_is_asked_where_it_stands_keeps_nothing_alive_by_answering(cluster):
    def work():
        import time
        import weakref

        class Thing:
            pass

        def wait():
            thing = Thing()
            time.sleep(1)  # meanwhile the kernel asks
            return weakref.ref(thing)

        return wait()() is None

    assert cluster.run(work) == [True, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_the_gpus_allocator_rounds_each_block_up_and_else_agrees_with_the_ledger():
    def train():
        def trained():
            engine = ENGINES["zero2"](models.build("gpt-tiny").cuda(), torch.optim.AdamW, lr=1e-3)
            for inputs, targets in models.batches("gpt-tiny", 1, 0, 2):
                engine.training_step(inputs.cuda(), targets.cuda(), models.loss)
            torch.cuda.synchronize()
            return engine

        trained()  # what cuBLAS keeps for itself, up to 32 MiB for each thread that multiplies, is there from now on
        gc.collect()
        stats = torch.cuda.memory_stats
        before, blocks_before = torch.cuda.memory_allocated(), stats()["allocation.all.current"]
        engine = trained()
        allocated = torch.cuda.memory_allocated() - before
        held = {holding.tensor.untyped_storage()._cdata: holding.tensor for holding in engine.holdings()}
        on_gpu = [t.untyped_storage().nbytes() for t in held.values() if t.is_cuda]
        return allocated, sum(on_gpu), stats()["allocation.all.current"] - blocks_before

    with Cluster(world_size=1, device="cuda") as cluster:
        ((allocated, held, blocks_made),) = cluster.record(train).results
    assert held <= allocated <= held + 512 * blocks_made + 2**20
