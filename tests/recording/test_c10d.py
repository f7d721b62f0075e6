"""Everything that torch.distributed can be asked for is an event: its word, its elements, what a rank must send."""

import pytest
import torch
import torch.distributed as dist

from zerolab import Cluster, models


def asked(recording, rank=0):
    """What one rank was recorded to ask for: word, elements and bytes."""
    return [(e.op, e.numel, e.logical_bytes) for e in recording.rank(rank).events if e.kind == "collective"]


def waited_for(recording, rank=0):
    """The elements of what was waited for."""
    return [e.numel for e in recording.rank(rank).events if e.kind == "wait"]


LISTS = hasattr(dist, "all_gather_single")  # torch 2.11's gloo has no all-to-all of lists


def ask_for_everything():
    """Every public collective of torch.distributed, on 8 elements; what sends objects sends lengths first."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    flat, half = torch.zeros(8), torch.zeros(4)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def both():
        return [torch.zeros(4), torch.zeros(4)]

    dist.all_reduce(flat)
    with dist._coalescing_manager():
        dist.all_reduce(flat)
        dist.all_reduce(half)
    dist.all_gather(both(), half)
    gather(flat, half)
    dist.all_gather_object([None, None], rank)
    scatter(half, flat)
    dist.reduce_scatter(half, both())
    if LISTS:
        dist.all_to_all(both(), both())
    dist.all_to_all_single(torch.zeros(8), flat)
    dist.broadcast(flat, src=0)
    dist.broadcast_object_list([rank], src=0)
    dist.reduce(flat, dst=0)
    dist.gather(half, None if rank else both(), dst=0)
    dist.gather_object(rank, None if rank else [None, None], dst=0)
    dist.scatter(half, None if rank else both(), src=0)
    dist.scatter_object_list([None], None if rank else [1, 2], src=0)
    dist.barrier()
    dist.monitored_barrier()
    operations = [dist.P2POp(dist.isend, flat, other), dist.P2POp(dist.irecv, torch.zeros(8), other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if rank == 0:
        dist.send(flat, 1)
        dist.isend(flat, 1).wait()
        dist.send_object_list([rank], 1)
    else:
        dist.recv(flat)
        dist.irecv(flat, 0).wait()
        dist.recv_object_list([None], 0)


LENGTH, PICKLED = 8, 5  # of an object: how long it is, as one int64, and as many bytes


def asked_of_both(rank):
    """What `ask_for_everything` asks a rank for that it asks the other for, too; rank 0 is the root."""
    root = 1 - rank
    return [
        ("all_reduce", 8, 32),
        ("all_reduce", 12, 48),
        *[("all_gather", 8, 16)] * 2,
        *[("all_gather", 2, LENGTH), ("all_gather", 2 * PICKLED, PICKLED)],
        *[("reduce_scatter", 8, 16)] * 2,
        *[("all_to_all", 8, 16)] * (2 if LISTS else 1),
        ("broadcast", 8, 16),
        *[("broadcast", 1, LENGTH // 2), ("broadcast", PICKLED, PICKLED // 2)],
        ("reduce", 8, 16),
        ("gather", 8, 16 * rank),
        *[("all_gather", 2, LENGTH), ("gather", 2 * PICKLED, PICKLED * rank)],
        ("scatter", 8, 16 * root),
        *[("broadcast", 1, LENGTH // 2), ("scatter", 2 * PICKLED, PICKLED * root), ("scatter", 2, LENGTH * root)],
        *[("barrier", 0, 0)] * 2,
        *[("send", 8, 32), ("recv", 8, 0)],
    ]


def test_every_collective_of_torch_is_recorded_with_its_elements_and_its_bytes(cluster):
    recording = cluster.record(ask_for_everything)
    shared = asked_of_both(0)
    sent = [("send", 8, 32), ("send", 8, 32), ("send", 1, LENGTH), ("send", PICKLED, PICKLED)]
    assert asked(recording, 0) == [*shared, *sent]
    assert asked(recording, 1) == [*asked_of_both(1), *(("recv", numel, 0) for _, numel, _ in sent)]
    # A monitored barrier has nothing to wait for: it has ended when it returns.
    assert len(waited_for(recording)) == len(asked(recording)) - 1
    numbers = [collective.number for collective in recording.collectives]
    assert numbers == list(range(len(shared) - 2)), "what all ranks call is numbered"
    assert all(len(collective.ops) == 1 for collective in recording.collectives)


def test_functional_collectives_are_recorded_once_each_with_their_line_and_their_wait(cluster):
    def ask():
        import torch.distributed._functional_collectives as functional

        flat, group = torch.ones(8), dist.group.WORLD
        gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
        scatter = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor
        total = functional.all_reduce(flat, "sum", group)
        total = total + 1  # only here is it waited for
        for tensor in (gather(flat, 0, group), scatter(flat, "sum", 0, group), functional.broadcast(flat, 0, group)):
            tensor.sum()
        functional.all_to_all_single(flat, [4, 4], [4, 4], group).sum()
        for tensor in functional.all_reduce_coalesced([flat, torch.ones(4)], "sum", group):
            tensor.sum()
        return total.tolist()

    recording = cluster.record(ask)
    assert recording.results == [[3.0] * 8] * 2
    alone = [("all_reduce", 8, 32), ("all_gather", 16, 32), ("reduce_scatter", 8, 16), ("broadcast", 8, 16)]
    for rank in (0, 1):
        assert asked(recording, rank) == [*alone, ("all_to_all", 8, 16), ("all_reduce", 12, 48)]
        assert sorted(waited_for(recording, rank)) == [8, 8, 8, 8, 12, 16]
    assert [collective.number for collective in recording.collectives] == list(range(6))
    first, wait = (next(e for e in recording.rank(0).events if e.kind == kind) for kind in ("collective", "wait"))
    text = recording.sources[first.source.id].text.splitlines()
    assert text[first.source.line - 1].strip() == 'total = functional.all_reduce(flat, "sum", group)'
    assert text[wait.source.line - 1].strip().startswith("total = total + 1")
    assert first.t_end >= wait.t_end, "it is under way until it has been waited for"
    assert first.live["other"] == 2 * 8 * 4, "its result is a tensor, and what only wraps it is none"


def test_what_ranks_send_unequally_is_counted_to_the_byte(cluster):
    def ask():
        import torch.distributed._functional_collectives as functional

        rank = dist.get_rank()
        # Rank 0 keeps 1 row and sends 5, rank 1 sends 2 and keeps 1; a row has 3 elements of 4 bytes.
        sends, gets = ([1, 5], [1, 2]) if rank == 0 else ([2, 1], [5, 1])
        rows, room = torch.ones(sum(sends), 3), torch.zeros(sum(gets), 3)
        dist.all_to_all_single(room, rows, gets, sends)
        return functional.all_to_all_single(rows, gets, sends, dist.group.WORLD).sum().item()

    recording = cluster.record(ask)
    assert recording.results == [3.0 * 3, 3.0 * 6]
    assert [sent for _, _, sent in asked(recording, 0)] == [5 * 3 * 4] * 2
    assert [sent for _, _, sent in asked(recording, 1)] == [2 * 3 * 4] * 2


@pytest.mark.parametrize("mode", ["whole", "times"])
def test_tensors_of_several_dtypes_count_with_their_own_widths(cluster, mode):
    def ask():
        import torch.distributed._functional_collectives as functional

        tensors = [torch.ones(10), torch.ones(6, dtype=torch.float64)]
        for tensor in functional.all_gather_into_tensor_coalesced(tensors, dist.group.WORLD):
            tensor.sum()  # its numbers are wrong over gloo, also if nobody records

    recording = (cluster.record if mode == "whole" else cluster.record_times)(ask)
    assert asked(recording) == [("all_gather", 2 * (10 + 6), 10 * 4 + 6 * 8)]


def test_functional_sends_and_receives_of_a_batch_are_events_of_their_own(cluster):
    def ask():
        import torch.distributed._functional_collectives as functional

        if not hasattr(functional, "batch_p2p_ops_inplace"):  # new with torch 2.13
            return False
        other, tensors = 1 - dist.get_rank(), [torch.ones(3), torch.zeros(3)]
        asked = functional.batch_p2p_ops_inplace(["isend", "irecv"], [other] * 2, [0, 0], tensors, dist.group.WORLD)
        for tensor in asked:
            tensor.sum()
        return True

    recording = cluster.record(ask)
    for rank, asked_for in zip((0, 1), recording.results, strict=True):
        assert asked(recording, rank) == [("send", 3, 12), ("recv", 3, 0)] * asked_for
        assert waited_for(recording, rank) == [3, 3] * asked_for
        assert {e.peer for e in recording.rank(rank).events if e.kind == "collective"} <= {1 - rank}


def test_what_distributed_tensors_send_is_recorded(cluster):
    def ask():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2,))
        matrix = distribute_tensor(torch.arange(16.0).view(4, 4), mesh, [Shard(0)])
        whole = matrix.full_tensor()
        again = matrix.redistribute(mesh, [Replicate()]).to_local()
        return matrix.sum().full_tensor().item(), bool((whole == again).all())

    recording = cluster.record(ask)
    assert recording.results == [(120.0, True)] * 2
    for rank in (0, 1):
        scattered, *rest = asked(recording, rank)
        assert scattered[0] == "scatter"
        assert rest == [("all_gather", 16, 32), ("all_gather", 16, 32), ("all_reduce", 1, 4)]


def test_clipping_under_fsdp2_is_recorded_in_the_step(cluster):
    def train(clip):
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(models.build("mlp-odd"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in models.batches("mlp-odd", 2, dist.get_rank(), 2):
            models.loss(model(inputs), targets).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    without, clipped = cluster.record(train, False), cluster.record(train, True)
    reduces = [e for e in clipped.rank(0).events if (e.kind, e.op, e.step) == ("collective", "all_reduce", 2)]
    assert [(event.numel, event.logical_bytes, event.phase) for event in reduces] == [(6, 24, "reduce")]  # 6 norms
    assert clipped.rank(0).info.logical_bytes[1] == without.rank(0).info.logical_bytes[1] + 24


@pytest.mark.parametrize("gradients_in_buckets", [False, True])
def test_the_buckets_of_torchs_own_ddp_are_communication_in_any_loop(cluster, gradients_in_buckets):
    def train():
        model = torch.nn.parallel.DistributedDataParallel(
            models.build("mlp-odd"), gradient_as_bucket_view=gradients_in_buckets
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in models.batches("mlp-odd", 2, dist.get_rank(), 3):
            models.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    for rank in cluster.record(train).ranks:
        assert rank.state == {"parameters": 1372, "gradients": 1372, "optimizer_state": 0}
        (update,) = [event for event in rank.events if (event.kind, event.step) == ("optimizer", 3)]
        # A bucket has all gradients of this small model, unless they lie in it themselves.
        assert update.live["communication"] == (0 if gradients_in_buckets else 1372)
        last = rank.events[-1].live
        assert last["communication"] + last["activations"] < 1372 + 4 * 32, "what is left is the last batch's"


@pytest.fixture(scope="module")
def three():
    with Cluster(world_size=3, device="cpu") as opened:
        yield opened


def test_only_a_gathers_others_and_a_scatters_root_send(three):
    def ask():
        mine, is_root = torch.ones(5), dist.get_rank() == 1
        dist.gather(mine, [torch.zeros(5) for _ in range(3)] if is_root else None, dst=1)
        dist.scatter(mine, [torch.ones(5) for _ in range(3)] if is_root else None, src=1)

    recording = three.record(ask)
    share = 5 * 4
    for rank, sent in ((0, [share, 0]), (1, [0, 2 * share]), (2, [share, 0])):
        assert asked(recording, rank) == [("gather", 15, sent[0]), ("scatter", 15, sent[1])]


def test_collectives_are_counted_by_their_group_so_that_its_ranks_agree_on_the_number(three):
    def unequally_often():
        groups = [(ranks, dist.new_group(ranks)) for ranks in ([0, 1], [1, 2], [2])]
        for ranks, group in groups:
            if dist.get_rank() in ranks:
                dist.all_reduce(torch.ones(8), group=group)
        dist.all_reduce(torch.ones(4))

    recording = three.record(unequally_often)
    found = {(each.group, each.number): sorted(each.events) for each in recording.collectives}
    assert found == {((0, 1), 0): [0, 1], ((1, 2), 0): [1, 2], ((2,), 0): [2], (None, 0): [0, 1, 2]}
    begun = [min(event.t_start for event in each.events.values()) for each in recording.collectives]
    assert begun == sorted(begun)
    assert recording.counted == "4 collectives"
    # Like ones in groups of other sizes are other rows of the table.
    told = [(row["op"], row["count"], row.get("ranks")) for row in recording.traffic(step=0, rank=0)]
    assert told == [("all_reduce", 1, 2), ("all_reduce", 1, 3), ("total", 2, None)]
