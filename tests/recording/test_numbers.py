"""Where there is no model, a recording has the numbers of small tensors, before a collective and after it."""

import torch
import torch.distributed as dist

from zerolab import DDP, Recording, models
from zerolab.engines import reduce_scatter


def events(recording, rank, kind):
    return [event for event in recording.ranks[rank].events if event.kind == kind]


def test_what_was_given_and_what_it_became_is_recorded_and_kept_in_a_file(cluster, tmp_path):
    def both():
        flat = torch.arange(2 * dist.get_world_size()) + dist.get_rank()
        reduce_scatter(flat).wait()
        dist.all_reduce(flat, op=dist.ReduceOp.MAX)
        return flat.tolist()

    recording = cluster.record(both)
    own, foreign = events(recording, 1, "collective")[0], events(recording, 1, "collective")[-1]
    assert own.numbers == (1.0, 2.0, 3.0, 4.0)
    assert foreign.op == "all_reduce"
    first, last = events(recording, 1, "wait")
    assert first.numbers == (1.0, 2.0, 5.0, 7.0) == foreign.numbers
    assert last.numbers == tuple(map(float, recording.results[1]))
    recording.save(tmp_path / "run.json")
    assert Recording.load(tmp_path / "run.json").ranks[1].events == recording.ranks[1].events


def test_many_numbers_and_those_that_are_not_finite_are_left_out(cluster):
    def send():
        dist.all_reduce(torch.ones(65))
        dist.all_reduce(torch.tensor([float("nan")]))

    recording = cluster.record(send)
    assert [event.numbers for kind in ("collective", "wait") for event in events(recording, 0, kind)] == [None] * 4


def test_with_a_model_no_numbers_are_recorded(cluster):
    def train():
        engine = DDP(models.build("gpt-tiny"), torch.optim.SGD, lr=0.1)
        [batch] = models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), 1)
        engine.training_step(*batch, models.loss)
        dist.all_reduce(torch.ones(1))

    assert {event.numbers for event in cluster.record(train).ranks[0].events if event.step} == {None}


def test_a_barrier_has_no_numbers_for_its_tensor_was_never_filled(cluster):
    events = cluster.record(dist.barrier).ranks[0].events
    assert {(event.kind, event.op, event.numbers) for event in events if event.op == "barrier"} == {
        ("collective", "barrier", None),
        ("wait", "barrier", None),
    }
