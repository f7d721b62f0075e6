"""On a machine with a GPU: NCCL where every rank has one, gloo through main memory where ranks share one."""

import pytest
import torch
from awkward import distance, make, train_alone
from torch import nn

from zerolab import Cluster
from zerolab.engines import ENGINES
from zerolab.theory import STAGES

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")]
ROUNDING = 512  # bytes: the caching allocator rounds every block up to a multiple of this
SCRATCH = 100 * ROUNDING  # less than one of the model's flats: 66,048 bytes


@pytest.fixture(params=[1, 4], scope="module")
def gpu_cluster(request):
    """One rank on NCCL, and four that share what GPUs there are."""
    with Cluster(world_size=request.param, device="cuda") as cluster:
        yield cluster


def _train(stage, offload, own=False):
    import torch.distributed as dist
    from awkward import batch, loss_fn, shard_of

    engine = ENGINES[stage](make().cuda(), torch.optim.SGD, lr=0.1, offload=offload)
    for step in range(3):
        rows = [shard_of(tensor, dist.get_rank(), dist.get_world_size()).cuda() for tensor in batch(step)]
        if own:
            loss_fn(engine.model(rows[0]), rows[1]).backward()
            engine.step()
        else:
            engine.training_step(*rows, loss_fn)
    return engine.state_dict()


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_a_gpu_reaches_the_weights_of_one_cpu_process(gpu_cluster, stage, offload):
    reference = train_alone(torch.optim.SGD, steps=3, lr=0.1)
    assert all(distance(state, reference) <= 1e-5 for state in gpu_cluster.run(_train, stage, offload))


@pytest.mark.parametrize("stage", STAGES)
def test_so_it_does_by_a_loops_own_backward(gpu_cluster, stage):
    reference = train_alone(torch.optim.SGD, steps=3, lr=0.1)
    assert all(distance(state, reference) <= 1e-5 for state in gpu_cluster.run(_train, stage, False, own=True))


def ledger_of_the_gpu():
    """A ledger that counts the GPU's storages by themselves, as the caching allocator rounds them."""
    from zerolab.recording.ledger import Ledger

    class Rounded(Ledger):
        """What the allocator should have given out: every storage rounded up; and the highest of it so far."""

        made, highest = None, 0

        def __init__(self, clock, *, apart=True):
            super().__init__(clock, apart=apart)
            Rounded.made = self

        def see(self, tensor):
            super().see(tensor)
            self.highest = max(self.highest, self.rounded())

        def resized(self, storage):
            unit = super().resized(storage)
            self.highest = max(self.highest, self.rounded())
            return unit

        def rounded(self):
            """Bytes that are live now; main memory counts nothing, where gloo's copies and Adam's counters lie."""
            entries = [(entry, entry()) for entry in self._entries.values()]
            here = (entry for entry, storage in entries if storage is not None and storage.is_cuda)
            return sum(-(-entry.nbytes // ROUNDING) * ROUNDING for entry in here)

    return Rounded


def unseen_by_the_ledger(stage):
    """Bytes that the allocator has and the ledger has not: before a recorded step, after it, and at its highest."""
    from zerolab.recording import recorder

    watched = recorder.Ledger = ledger_of_the_gpu()
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3))).cuda()
    engine = ENGINES[stage](model, torch.optim.AdamW, lr=1e-3)
    x = torch.ones(4, 128, device="cuda")
    for _ in range(2):  # what cuBLAS keeps for itself is there from now on, and so are Adam's moments
        engine.training_step(x, x, nn.functional.mse_loss)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with recorder.Recorder():
        before = torch.cuda.memory_allocated() - watched.made.rounded()
        engine.training_step(x, x, nn.functional.mse_loss)
        torch.cuda.synchronize()
        watched.made.settle()
        after = torch.cuda.memory_allocated() - watched.made.rounded()
        return before, after, torch.cuda.max_memory_allocated() - watched.made.highest


@pytest.mark.parametrize("stage", STAGES)
def test_the_ledger_agrees_with_the_gpus_allocator_up_to_its_rounding(gpu_cluster, stage):
    for before, after, at_peak in gpu_cluster.run(unseen_by_the_ledger, stage):
        assert before == after  # what was there before the recorder: cuBLAS's workspace, say
        assert 0 <= at_peak - before <= SCRATCH  # and within an operation, what a kernel takes for itself
