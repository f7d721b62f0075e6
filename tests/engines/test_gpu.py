"""On a machine with a GPU: NCCL where every rank has one, gloo through main memory where ranks share one."""

import pytest
import torch
from awkward import distance, make, train_alone
from torch import nn

from zerolab import Cluster
from zerolab.engines import ENGINES

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")]
STAGES = ["ddp", "zero1", "zero2", "zero3"]


@pytest.fixture(params=[1, 4])
def gpu_cluster(request):
    """One rank on NCCL, and four that share what GPUs there are."""
    with Cluster(world_size=request.param, device="cuda") as cluster:
        yield cluster


def _train(stage, offload):
    import torch.distributed as dist
    from awkward import batch, loss_fn, shard_of

    engine = ENGINES[stage](make().cuda(), torch.optim.SGD, lr=0.1, offload=offload)
    for step in range(3):
        rows = [shard_of(tensor, dist.get_rank(), dist.get_world_size()).cuda() for tensor in batch(step)]
        engine.training_step(*rows, loss_fn)
    return engine.state_dict()


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_a_gpu_reaches_the_weights_of_one_cpu_process(gpu_cluster, stage, offload):
    reference = train_alone(torch.optim.SGD, steps=3, lr=0.1)
    assert all(distance(state, reference) <= 1e-5 for state in gpu_cluster.run(_train, stage, offload))


@pytest.mark.parametrize("stage", STAGES)
def test_the_ledger_agrees_with_the_gpus_allocator_up_to_its_rounding(gpu_cluster, stage):
    def unseen_by_the_ledger():
        from zerolab.recording.recorder import Recorder

        model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3))).cuda()
        engine = ENGINES[stage](model, torch.optim.AdamW, lr=1e-3)
        x = torch.ones(4, 128, device="cuda")
        engine.training_step(x, x, nn.functional.mse_loss)  # what cuBLAS keeps for itself is there from now on
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        with Recorder() as recorder:
            engine.training_step(x, x, nn.functional.mse_loss)
            torch.cuda.synchronize()
        recorded = recorder.finish()
        at_first = sum(recorded.events[0].live.values())
        return allocated - at_first, torch.cuda.max_memory_allocated() - recorded.meta["peak_total"]

    for before, at_peak in gpu_cluster.run(unseen_by_the_ledger):
        assert abs(at_peak - before) <= 512 * 100  # fewer than a hundred tensors, each rounded up to 512 bytes
