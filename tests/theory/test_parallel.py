"""What other ways to divide add to ZeRO: the closed forms beside what real ranks sent and kept."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from zerolab import Cluster, catalog, models
from zerolab.engines import ENGINES
from zerolab.simulation import architectures
from zerolab.simulation.checkpointing import checkpoint_blocks
from zerolab.theory import parallel, seconds
from zerolab.theory.activations import CHECKPOINTING, kept_by_a_block
from zerolab.theory.parallel import Run

RANKS = 4
TINY = catalog.Architecture("gpt-tiny", "gpt", 64, 4, 4, 64, 128, "models.py")
LLAMA = catalog.Architecture("tiny", "llama", 64, 4, 2, 64, 128, "a test", hidden=96, kv_heads=4)
RUN = Run(TINY, RANKS, rows=4, length=32, node=2, word=4, checkpointing="none")


@pytest.fixture(scope="module", name="cluster")
def make_cluster():
    with Cluster(world_size=RANKS, device="cpu") as cluster:
        yield cluster


def sent(recording, group=None, ops=(), rank=0):
    """Bytes that a rank sent in the last step: all, or in one group, or by some operations."""
    return sum(
        event.logical_bytes
        for event in recording.rank(rank).events
        if event.kind == "collective" and event.parent is None and event.step == recording.info.steps
        if group is None or event.group == group
        if not ops or event.op in ops
    )


def train(stage, **options):
    engine = ENGINES[stage](models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3, **options)
    batches = models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), 2)
    return [engine.training_step(*batch, models.loss).item() for batch in batches]


def test_the_form_of_the_tiny_model_is_that_of_the_model():
    assert TINY.num_params == sum(weight.numel() for weight in models.build("gpt-tiny").parameters())


@pytest.mark.slow
def test_hybrid_sharding_sends_three_passes_in_the_node_and_two_of_a_shard_between_nodes(cluster):
    recording = cluster.record(train, "hsdp", reshard_after_forward=True)
    form = parallel.hsdp(RUN)
    assert sent(recording, group=(0, 1)) == form.sent["node"]
    assert sent(recording, group=(0, 2)) == form.sent["nodes"]
    assert sent(recording) == sum(form.sent.values())
    counters = 4 * len(list(models.build("gpt-tiny").parameters()))
    assert sum(recording.state.values()) == form.state + counters


@pytest.mark.slow
def test_a_second_shard_in_the_node_keeps_backwards_gathers_there(cluster):
    """FSDP2's `reshard_after_forward=2` is ZeRO++'s hpZ."""
    recording = cluster.record(train, "fsdp2", reshard_after_forward=2)
    form, zero3 = parallel.hpz(RUN), parallel.zero3(RUN)
    root = parallel.one_pass(RUN.word * TINY.root_params, RANKS)
    assert sent(recording, group=(0, 1)) == form.sent["node"]
    assert sent(recording) - sent(recording, group=(0, 1)) == form.sent["all"]
    assert sum(form.sent.values()) < sum(zero3.sent.values())
    assert root > 0
    # The second shard exists from forward to backward, beside the first.
    held = [event for event in recording.rank(1).events if event.op == "hold" and event.unit == "blocks.0"]
    sizes = {sum(stop - start for start, stop in event.spans) for event in held if event.category == "parameters"}
    whole = TINY.block_params
    assert {whole // 4, whole} < sizes
    assert any(whole // 2 <= size < whole for size in sizes)
    assert form.state - zero3.state == RUN.word * TINY.num_params / 2


def divided(mesh, *, sequence):
    """A tiny Llama whose blocks are divided among the ranks of a mesh."""
    model = architectures.build(LLAMA)
    lies, given = (Shard(1) if sequence else Replicate()), {"use_local_output": False}
    whole = PrepareModuleOutput(output_layouts=lies, desired_output_layouts=Replicate(), **given)
    rows = partial(RowwiseParallel, output_layouts=lies)
    names = ["attention.queries", "attention.keys", "attention.values", "gate", "up"]
    plan = {name: ColwiseParallel() for name in names} | {"attention.out": rows(), "down": rows()}
    for block in model.blocks:
        if sequence:
            parallelize_module(block, mesh, {"norm1": SequenceParallel(**given), "norm2": SequenceParallel(**given)})
        parallelize_module(block, mesh, plan | {"norm1": whole, "norm2": whole})
        block.attention.heads //= mesh.size()
        block.attention.kv_heads //= mesh.size()
    return model


def two_losses(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = models.batches("gpt-tiny", 1, 0, 1)[0]
    losses = []
    for _ in range(2):
        loss = models.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_divided():
    torch.manual_seed(0)
    return two_losses(divided(init_device_mesh("cpu", (RANKS,)), sequence=False))


def alone():
    torch.manual_seed(0)
    return two_losses(architectures.build(LLAMA))


@pytest.mark.slow
def test_tensor_parallel_ranks_all_reduce_twice_in_a_blocks_forward_and_twice_in_its_backward(cluster):
    recording = cluster.record(train_divided)
    run = Run(LLAMA, RANKS, rows=4, length=32, node=RANKS, word=4, checkpointing="none")
    assert sent(recording, ops=["all_reduce"]) == parallel.tensor(run, RANKS).sent["node"]
    assert sent(recording) == sum(
        parallel.tensor(run, RANKS).sent.values()
    )  # one rank of each part has nothing to share
    for losses in recording.results:
        assert losses == pytest.approx(alone(), abs=1e-5)


def exchanges_of_a_block(checkpointing):
    """Gathers and reductions of forward and backward of a divided block, of two ranks of which only one exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model = divided(init_device_mesh("cpu", (2,)), sequence=True)
        checkpoint_blocks(model, checkpointing, ["blocks.0"])
        part = torch.randn(4, 32 // 2, LLAMA.width, requires_grad=True)
        with CommDebugMode() as seen:
            model.blocks[0](part * 1).sum().backward()
        counts = {str(op).rpartition(".")[2]: count for op, count in seen.get_comm_counts().items()}
        return counts["all_gather_into_tensor"], counts["reduce_scatter_tensor"]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_a_repeated_forward_exchanges_again_all_but_what_gives_the_blocks_output(checkpointing):
    found = exchanges_of_a_block(checkpointing)
    assert found == {"none": (4, 4), "selective": (6, 5), "block": (6, 5)}[checkpointing]
    run = Run(replace(LLAMA, depth=1), 2, rows=4, length=32, word=4, checkpointing=checkpointing)
    assert parallel.tensor(run, 2).sent["node"] == sum(found) * parallel.one_pass(run.hidden, 2)


def kept_in_a_block():
    """Bytes that autograd saves in the forward of one block, parameters apart, each storage once."""
    block, saved = divided(init_device_mesh("cpu", (RANKS,)), sequence=True).blocks[0], {}
    own = {
        weight.to_local().untyped_storage().data_ptr() for weight in block.parameters() if hasattr(weight, "to_local")
    }
    own |= {weight.untyped_storage().data_ptr() for weight in block.parameters() if not hasattr(weight, "to_local")}

    def keep(tensor):
        plain = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = plain.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = plain, storage.nbytes()
        return tensor

    part = torch.randn(2, 32 // RANKS, 64, requires_grad=True) * 1
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        block(part).sum()
    return sum(nbytes for _, nbytes in saved.values())


@pytest.mark.slow
def test_of_a_divided_block_a_rank_keeps_a_part_and_the_outputs_of_norms_whole(cluster):
    seen = set(cluster.run(kept_in_a_block))
    form = kept_by_a_block(LLAMA, 2, 32, 4, tensor=RANKS)
    written_out = 2 * 4 * 64 * 2 * 32 // RANKS  # on the CPU torch's norms keep a result more (see `activations`)
    assert seen == {sum(form.values()) + written_out}


def pipelined(micro_batches):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, device = dist.get_rank(), torch.device("cpu")
    model = models.build("gpt-tiny")
    part = model.blocks[rank]
    rows = [torch.randn(micro_batches * 4, 32, 64) for _ in "12"]
    stage = PipelineStage(part, rank, RANKS, device)
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    for _ in range(2):
        if rank == 0:
            schedule.step(rows[0])
        else:
            schedule.step(target=rows[1] if rank == RANKS - 1 else None)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
def test_a_stage_of_a_pipeline_sends_one_activation_a_micro_batch_on_and_one_gradient_back(cluster):
    recording = cluster.record(pipelined, 4)
    of_ends = parallel.pipeline(RUN, RANKS, 4).sent["stages"]
    assert [sent(recording, ops=["send"], rank=rank) for rank in range(RANKS)] == [
        of_ends, 2 * of_ends, 2 * of_ends, of_ends,
    ]  # fmt: skip


def pipelined_and_sharded(released):
    """Two stages of two blocks, each sharded by FSDP2 over two ranks; four micro-batches."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "data"))
    number = mesh["stage"].get_local_rank()
    part = torch.nn.Sequential(*models.build("gpt-tiny").blocks[2 * number : 2 * number + 2])
    for block in part:
        fully_shard(block, mesh=mesh["data"], reshard_after_forward=released)
    fully_shard(part, mesh=mesh["data"])
    stage = PipelineStage(part, number, 2, torch.device("cpu"), group=mesh["stage"].get_group())
    schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
    optimizer, rows = torch.optim.SGD(part.parameters(), lr=0.1), torch.randn(16, 32, 64)
    for _ in range(2):
        schedule.step(*([rows] if number == 0 else []), **({"target": rows} if number else {}))
        optimizer.step()
        optimizer.zero_grad()


def test_a_pipeline_of_one_stage_has_nobody_to_send_activations_to():
    assert parallel.pipeline(RUN, 1, 4).sent["stages"] == 0 < parallel.pipeline(RUN, 2, 4).sent["stages"]


@pytest.mark.slow
def test_in_a_pipeline_fsdp_gathers_for_every_micro_batch_or_stays_whole_and_reduces_once(cluster):
    one = parallel.one_pass(RUN.word * 2 * TINY.block_params, 2)
    released, whole = (cluster.record(pipelined_and_sharded, each) for each in (True, False))
    assert sent(released, group=(0, 1), ops=["all_gather"]) == 5 * one
    assert sent(whole, group=(0, 1), ops=["all_gather"]) == one
    assert sent(released, group=(0, 1), ops=["reduce_scatter"]) == one
    forms = [parallel.pipeline(RUN, 2, 4, stage).sent["all"] for stage in ("zero3", "zero1")]
    assert forms[0] / forms[1] == sent(released, group=(0, 1)) / sent(whole, group=(0, 1))


def test_state_is_divided_by_all_ranks_whoever_divides_the_work():
    run = Run(catalog.architecture("llama3-70b"), 64, length=8192)
    states = {parallel.zero3(run).state, parallel.tensor(run, 8).state, parallel.context(run, 8).state}
    assert states == {16 * run.shape.num_params / 64}
    assert parallel.hsdp(run).state == 8 * parallel.zero3(run).state
    activations = parallel.zero3(run).activations
    assert parallel.tensor(run, 8).activations == parallel.context(run, 8).activations == activations / 8


def test_a_pipeline_keeps_as_much_as_one_rank_and_stands_idle_at_its_ends():
    run = Run(catalog.architecture("llama3-70b"), 64, length=8192)
    full = parallel.pipeline(run, 8, 32)
    assert full.activations == parallel.zero3(run).activations
    assert parallel.pipeline(run, 8, 2).activations == full.activations / 4
    assert parallel.bubble(8, 32) == 7 / 32
    assert parallel.bubble(8, 32, chunks=4) == 7 / 128
    each, once = (parallel.pipeline(run, 8, 32, stage).sent["all"] for stage in ("zero3", "zero1"))
    assert each == 17 * once  # 33 gathers and a reduction, where two passes would do


def test_each_kind_of_checkpointing_says_what_it_repeats():
    assert parallel.AGAIN.keys() == parallel.RING_AGAIN.keys() == seconds.RECOMPUTED.keys() == set(CHECKPOINTING)


@pytest.mark.parametrize(
    ("way", "says"),
    [
        (lambda: parallel.tensor(Run(TINY, 8), 3), "tensor is 3, which does not divide 8 ranks"),
        (lambda: parallel.tensor(Run(TINY, 16, node=8), 16), "tensor is 16, which does not divide 8 ranks of a node"),
        (lambda: parallel.pipeline(Run(TINY, 8), 8, 0), "number of micro-batches is 0"),
        (lambda: parallel.hsdp(Run(TINY, 12, node=8)), "node is 8, which does not divide 12 ranks"),
        (lambda: parallel.context(Run(TINY, 8), 0), "context is 0"),
        (lambda: parallel.context(Run(TINY, 8), 8, "ulysses"), "context is 8, which does not divide 4 heads of keys"),
        (lambda: parallel.tensor(Run(TINY, 8), 8), "tensor is 8, which does not divide 4 heads"),
        (lambda: parallel.pipeline(Run(TINY, 8), 8, 1), "stages is 8, and gpt-tiny has 4 blocks: give each at least"),
        (lambda: parallel.experts(Run(TINY, 8), 7), "experts is 7, which does not divide 8 ranks"),
        (lambda: parallel.experts(Run(TINY, 8), 8, top=-1), "number of experts of a token .top. is -1"),
        (lambda: parallel.bubble(4, 0), "number of micro-batches is 0"),
        (lambda: parallel.bubble(4, 4, 0), "number of chunks is 0"),
        (lambda: Run(TINY, 8, checkpointing="full"), "unknown checkpointing 'full': choose one of none"),
        (lambda: Run(TINY, -4), "value of world_size is -4: it must be a whole number, 1 or more"),
        (lambda: Run(TINY, 8, rows=0), "value of rows is 0"),
        (lambda: Run(TINY, 8, word=0), "value of word is 0"),
        (lambda: Run(TINY, 8, node=1.5), "value of node is 1.5"),
    ],
)
def test_ranks_that_do_not_come_out_even_and_runs_that_cannot_be_get_a_sentence(way, says):
    with pytest.raises(ValueError, match=says):
        way()


def test_the_table_leaves_out_what_so_many_ranks_cannot_do():
    table = parallel.ways(Run(catalog.architecture("gpt2"), 8))
    assert [row["way"] for row in table] == ["ZeRO-3", "HSDP", "hpZ", "ZeRO-1 x PP 8", "ZeRO-3 x CP 8"]
    assert parallel.ways(Run(catalog.architecture("gpt2"), 1)).title.startswith("gpt2 on 1 rank, ")


def test_the_maps_page_has_the_table_of_what_each_way_comes_to():
    page = Path(__file__).parents[2].joinpath("docs", "map.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- ways -->\n")[2].partition("<!-- end of ways -->")[0]
    table = parallel.ways(Run(catalog.architecture("llama3-70b"), 64, length=8192))
    assert shown == f"```text\n{table}\n```\n"
