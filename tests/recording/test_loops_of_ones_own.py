"""Learners' code has no holdings: what it does is seen from outside."""

import cProfile
import itertools
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from loss_of import LossOf
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import zerolab
from zerolab import models
from zerolab.engines import ENGINES
from zerolab.engines.collectives import all_gather  # bound before any recorder is on, as in a learner's cell
from zerolab.recording.recorder import Recorder


def step_by_hand(model, optimizer, batch):
    """Forward, backward, and the average of the gradients over the ranks."""
    models.loss(model(batch[0]), batch[1]).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()


def ddp_by_hand():
    """Three steps of the odd MLP, the gradients averaged by hand."""
    model = models.build("mlp-odd")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in models.batches("mlp-odd", 2, dist.get_rank(), 3):
        step_by_hand(model, optimizer, batch)


@pytest.fixture(scope="module")
def by_hand(cluster):
    return cluster.record(ddp_by_hand)


def test_state_is_seen_without_an_engine(by_hand):
    assert by_hand.info.stage is None
    assert by_hand.num_params == 343
    for rank in by_hand.ranks:
        assert rank.state == {"parameters": 1372, "gradients": 1372, "optimizer_state": 2744 + 6 * 4}


def in_three_blocks(wrapped):
    """Two steps of three blocks of two units; each rank has all of them or, under tensor parallelism, half of each."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)) for _ in "012"))
    for block in model if wrapped == "in_parts" else ():
        parallelize_module(block, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "1": RowwiseParallel()})
    if wrapped == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("wrapped", "numel"), [("plain", 128), ("ddp", 128), ("in_parts", 64)])
def test_a_units_gradients_are_held_once_its_backward_is_over_and_are_no_activations(cluster, wrapped, numel):
    for rank in cluster.record(in_three_blocks, wrapped).ranks:
        events = [event for event in rank.events if event.step == 2 and event.phase == "backward"]
        passes = [event for event in events if event.op == "backward" and event.unit != "root"]
        held = [event for event in events if event.category == "gradients" and event.held]
        units = ["2.1", "2.0", "1.1", "1.0", "0.1", "0.0"]
        assert [event.unit for event in passes] == [event.unit for event in held] == units
        assert {event.held for event in held} == {numel}
        for place, event in enumerate(passes[:-1]):
            assert event.live["gradients"] == 4 * numel * (place + 1)
            assert held[place].t_end <= event.t_end


class Recomputed(nn.Module):
    """Three blocks, each computed again in backward."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in "012")

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def train_recomputed(reentrant):
    model = Recomputed(reentrant)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(torch.ones(4, 8, requires_grad=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_unit_that_is_computed_again_has_a_backward_and_then_its_gradients(record, reentrant):
    told = [event for event in record(train_recomputed, reentrant).events if event.step == 2]
    passes = [event for event in told if event.op == "backward" and event.unit != "root"]
    held = [event for event in told if event.category == "gradients" and event.held]
    assert [event.unit for event in passes] == [event.unit for event in held] == ["blocks.2", "blocks.1", "blocks.0"]
    for place, (event, hold) in enumerate(zip(passes, held, strict=True), 1):
        assert event.live["gradients"] == 72 * 4 * place
        assert hold.t_end <= event.t_end


def train_a_part_that_grows_and_is_called_before_its_whole():
    part, other = nn.Linear(4, 4), nn.Linear(4, 4)
    part(torch.ones(1, 4))
    part.added = nn.Parameter(torch.ones(4))
    other(torch.ones(1, 4))
    whole = nn.Sequential(part, other)
    optimizer = torch.optim.SGD(whole.parameters())
    (whole(torch.ones(1, 4)) * part.added).sum().backward()
    optimizer.step()


def test_a_part_that_has_grown_is_forgotten_once_its_whole_is_there(record):
    recording = record(train_a_part_that_grows_and_is_called_before_its_whole)
    assert recording.info.steps == 1
    assert recording.info.num_params == 2 * 20 + 4


def test_each_all_reduce_is_one_event_with_its_bytes_and_its_line(by_hand):
    for rank in by_hand.ranks:
        reduces = [e for e in rank.events if (e.kind, e.op, e.step) == ("collective", "all_reduce", 2)]
        assert [event.numel for event in reduces] == [78, 13, 169, 13, 65, 5]
        assert sum(event.logical_bytes for event in reduces) == rank.info.logical_bytes[1] == 343 * 4
        texts = {by_hand.sources[e.source.id].text.splitlines()[e.source.line - 1].strip() for e in reduces}
        assert texts == {"dist.all_reduce(parameter.grad)"}
        assert by_hand.sources[reduces[0].source.id].label == "test_loops_of_ones_own.py"


def test_ownership_is_read_off_the_model_and_its_optimizer(by_hand):
    held = {}
    for event in by_hand.ranks[0].events:
        if event.op == "hold":
            held.setdefault((event.unit, event.category), []).append(event.spans)
    assert held["0", "parameters"] == [((0, 91),)]
    assert held["0", "optimizer_state"] == [((0, 91),)]
    assert held["0", "gradients"][:2] == [((0, 91),), ()]


def train_by_hooks(send, *, in_one_tensor):
    """Each gradient is sent by a hook of its own, as it comes."""
    model = models.build("mlp-odd")
    parameters = list(model.parameters())
    if in_one_tensor:
        parts = torch.zeros(343).split([each.numel() for each in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(lambda mine: dist.all_reduce(send(mine.grad)))
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for inputs, targets in models.batches("mlp-odd", 2, dist.get_rank(), 2):
        models.loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not in_one_tensor)


@pytest.mark.parametrize("send", [lambda gradient: gradient, lambda gradient: gradient.data.view(-1)])
@pytest.mark.parametrize("in_one_tensor", [False, True])
def test_a_gradient_that_a_hook_sends_as_it_comes_has_its_unit(cluster, send, in_one_tensor):
    recording = cluster.record(train_by_hooks, send, in_one_tensor=in_one_tensor)
    for rank in recording.ranks:
        sent = [(e.unit, e.numel, e.step) for e in rank.events if (e.kind, e.op) == ("collective", "all_reduce")]
        one_step = [("0", 13), ("0", 78), ("2", 13), ("2", 169), ("4", 5), ("4", 65)]
        assert sorted(sent) == [(*each, step) for each in one_step for step in (1, 2)]


def test_torchs_own_ddp_is_seen_in_its_cpp(cluster):
    def train():
        model = torch.nn.parallel.DistributedDataParallel(models.build("mlp-odd"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in models.batches("mlp-odd", 2, dist.get_rank(), 3):
            models.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    for rank in cluster.record(train).ranks:
        reduced = [e.numel for e in rank.events if (e.kind, e.op, e.step) == ("collective", "all_reduce", 3)]
        assert sum(reduced) == 343
        assert rank.state["gradients"] == 1372


def test_a_send_has_no_number_but_its_bytes_and_its_peer(cluster):
    def pass_on():
        tensor = torch.zeros(4)
        if dist.get_rank() == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)

    sent, received = (
        next(event for event in rank.events if event.kind == "collective") for rank in cluster.record(pass_on).ranks
    )
    assert (sent.op, sent.peer, sent.logical_bytes, sent.number) == ("send", 1, 16, None)
    assert (received.op, received.peer, received.logical_bytes, received.number) == ("recv", 0, 0, None)


def test_a_collective_that_was_imported_by_name_is_one_event_too(cluster):
    def gather():
        all_gather(torch.zeros(8)).wait()

    for rank in cluster.record(gather).ranks:
        top = [event for event in rank.events if event.kind == "collective" and event.parent is None]
        assert [(event.op, event.logical_bytes) for event in top] == [("all_gather", 16)]


def test_a_forward_that_raises_leaves_the_next_one_in_order(record):
    class Model(torch.nn.Sequential):
        def forward(self, inputs):
            if inputs.isnan().any():
                raise ValueError("not a number")
            return super().forward(inputs)

    def train():
        model = Model(torch.nn.Linear(3, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="not a number"):
            model(torch.full((2, 3), torch.nan))
        for _ in range(2):
            model(torch.zeros(2, 3)).sum().backward()
            optimizer.step()

    recording = record(train)
    assert recording.info.steps == 2
    assert recording.info.state == {"parameters": 48, "gradients": 48, "optimizer_state": 0}


def train_and_look(look, steps=3):
    """Trains a layer, and after each step has a look at it; nobody tells what is a step."""
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch, other = torch.zeros(2, 3), torch.zeros(50, 3)
    for _ in range(steps):
        model.train()
        model(batch).sum().backward()
        optimizer.step()
        look(model, other)


def look_without_gradients(model, batch):
    with torch.no_grad():
        for _ in range(2):
            model(batch).sum()


def look_in_evaluation_mode(model, batch):
    model.eval()
    for _ in range(2):
        model(batch).sum()


def look_marked(model, batch):
    with zerolab.evaluation():
        for _ in range(2):
            model(batch).sum()


@pytest.mark.parametrize("look", [look_without_gradients, look_in_evaluation_mode, look_marked])
def test_an_evaluation_is_no_step_and_counts_into_none(record, look):
    trained, recording = record(train_and_look, lambda *_: None), record(train_and_look, look)
    figures = ("steps", "operations", "peak", "state", "wire_bytes")
    assert [getattr(recording.info, name) for name in figures] == [getattr(trained.info, name) for name in figures]
    seen = [event for event in recording.events if (event.kind, event.op) == ("module", "forward")]
    assert [event.step for event in seen] == [1, 0, 0, 2, 0, 0, 3, 0, 0]


def test_what_is_sent_in_an_evaluation_is_of_no_step(cluster):
    def train():
        def look(model, batch):
            with torch.no_grad():
                dist.all_reduce(model(batch).sum())

        train_and_look(look)

    for rank in cluster.record(train).ranks:
        assert rank.info.logical_bytes == [0, 0, 0]
        assert [event.step for event in rank.events if event.kind == "collective"] == [0, 0, 0]


def test_a_model_in_evaluation_mode_that_is_trained_makes_steps(record):
    def train():
        model = torch.nn.Linear(3, 3).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            (model(torch.zeros(2, 3)) - model(torch.ones(2, 3))).sum().backward()
            optimizer.step()

    recording = record(train)
    assert recording.info.steps == 2
    assert [e.step for e in recording.events if (e.kind, e.op) == ("module", "forward")] == [1, 1, 2, 2]


def test_a_loop_over_fully_sharded_modules_holds_shards(cluster):
    def by_hand(steps=2):
        from torch.distributed.fsdp import fully_shard

        model = models.build("gpt-tiny")
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for inputs, targets in models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), steps):
            models.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    recording = cluster.record(by_hand)
    num_params = 212_352
    for rank in recording.ranks:
        assert rank.state["parameters"] == 4 * num_params / recording.world_size
        assert rank.state["gradients"] == 4 * num_params / recording.world_size
        counters = 4 * 52  # Adam's step, one for each parameter
        assert rank.state["optimizer_state"] == 8 * num_params / recording.world_size + counters
    held = {}
    for event in recording.events:
        if event.op == "hold" and event.unit == "blocks.1":
            held[event.rank, event.category] = event.spans
    numel = next(unit.numel for unit in recording.units if unit.name == "blocks.1")
    for category in ("parameters", "optimizer_state"):
        pieces = sorted(span for rank in range(recording.world_size) for span in held[rank, category])
        assert pieces[0][0] == 0
        assert pieces[-1][1] == numel
        assert all(before[1] == after[0] for before, after in itertools.pairwise(pieces)), "each row has one owner"


def dropped_buffers(op, times=400):
    """Exchanges and drops a buffer of 16 kB, again and again."""
    for _ in range(times):
        buffer = torch.ones(4000)
        op(buffer)
        del buffer


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_all_of_a_model_counts_of_which_fsdp1_shows_a_rank_its_part(cluster, use_orig_params):
    def train():
        blocks = [nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)) for _ in range(2)]
        blocks[1].append(blocks[1][0])  # whose parameters count once
        model = FullyShardedDataParallel(
            nn.Sequential(*blocks, nn.Linear(5, 3)),
            auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}),
            use_orig_params=use_orig_params,
            device_id=torch.device("cpu"),
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(3):
            model(torch.ones(4, 5)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    recording = cluster.record(train)
    assert [rank.info.num_params for rank in recording.ranks] == [4 * 30 + 18] * 2
    assert {unit.name.split(" ")[0] for unit in recording.units} >= {"0", "1"}
    assert "nearest to zero3" in repr(recording.explain())


@pytest.mark.parametrize(
    "op", [dist.all_reduce, lambda buffer: dist.broadcast(buffer, 0)], ids=["all_reduce", "broadcast"]
)
def test_a_dropped_buffer_is_free_though_gloos_thread_still_has_it(cluster, op):
    recording = cluster.record(dropped_buffers, op)
    for rank in recording.ranks:
        assert {sum(event.live.values()) for event in rank.events if event.kind == "collective"} == {16_000}


def send_a_copy(name):
    """A step of a module whose class has this name, its gradient averaged in a copy."""
    model = type(name, (torch.nn.Linear,), {})(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.zeros(2, 64)).sum().backward()
    copy = model.weight.grad.clone()
    dist.all_reduce(copy)
    optimizer.step()


@pytest.mark.parametrize("name", ["FSDPModule", "DistributedDataParallel"])
def test_a_class_of_ones_own_is_not_taken_for_torchs_of_the_same_name(cluster, name):
    mine, plain = cluster.record(send_a_copy, name), cluster.record(send_a_copy, "Plain")
    assert mine.peak == plain.peak


def calls_in_a_recorded_step(blocks):
    """Calls of Python in a step of blocks under FSDP2, with a recorder and without."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(blocks)])
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = []

    def step():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for recorder in (Recorder(), nullcontext()):
        with recorder:
            step()
            profile = cProfile.Profile(builtins=False)
            profile.runcall(step)
        counts.append(sum(entry.callcount for entry in profile.getstats()))
    return counts[0] - counts[1]


def test_what_the_recorder_does_for_a_block_does_not_grow_with_the_number_of_blocks(cluster):
    few, more, most = (cluster.run(calls_in_a_recorded_step, blocks)[0] for blocks in (4, 8, 16))
    assert (most - more) / 8 < 1.1 * (more - few) / 4


def test_each_of_several_models_of_one_class_has_units_of_its_own(record):
    def train():
        policy, *critics = nn.Linear(3, 2), nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)
        x = policy(torch.ones(4, 3))
        sum(critic(x).sum() for critic in critics).backward()
        torch.optim.SGD(policy.parameters(), lr=0.1).step()

    units = record(train).units
    assert [unit.name for unit in units] == ["root", "Linear.root", "Linear2.root", "Linear3.root"]
    assert sum(unit.numel for unit in units) == 8 + 3 * 3


def test_whole_gradients_to_which_fsdp2_adds_in_another_dtype_are_gradients(cluster):
    def train():
        model = models.build("mlp-odd")
        fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
        [(inputs, targets)] = models.batches("mlp-odd", 2, dist.get_rank(), 1)
        for last in (False, True):
            model.set_requires_gradient_sync(last)
            models.loss(model(inputs).float(), targets).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    for rank in cluster.record(train).ranks:
        _, second = (e for e in rank.events if (e.op, e.unit) == ("forward", "root"))
        assert second.live["gradients"] == 4 * 343


def test_the_buckets_of_replicate_are_communication_as_ddps_are(cluster):
    def train(wrap):
        model = wrap(nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    recordings = [cluster.record(train, wrap) for wrap in (DistributedDataParallel, replicate)]
    live = [[e.live for e in r.ranks[0].events if e.kind == "optimizer"][-1] for r in recordings]
    assert [(each["activations"], each["communication"]) for each in live] == [(0, 4 * 72)] * 2


class Probing(nn.Module):
    """Calls its first part to learn how wide the second must be."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.head = nn.Linear(self.features(torch.zeros(1, 4)).shape[1], 2)

    def forward(self, x):
        return self.head(self.features(x))


def lazy():
    return nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.Linear(6, 2))


def trained(make, stage):
    model = make()
    if stage and make is lazy:
        model(torch.zeros(1, 4))
    engine = ENGINES[stage](model, torch.optim.AdamW) if stage else None
    optimizer = engine.optimizer if engine else torch.optim.AdamW(model.parameters())
    for _ in range(3):
        batch = torch.ones(2, 4), torch.ones(2, 2)
        if engine:
            engine.training_step(*batch, nn.functional.mse_loss)
        else:
            step_by_hand(model, optimizer, batch)


@pytest.mark.parametrize("stage", [None, "ddp", "zero3"])
@pytest.mark.parametrize("make", [Probing, lazy])
def test_a_part_or_a_model_that_is_called_to_learn_shapes_counts_once(cluster, make, stage):
    recording = cluster.record(trained, make, stage)
    assert (recording.num_params, recording.info.steps) == (44, 3)
    total = recording.explain().rows[-1]
    assert total["bytes"] == total["measured"]


class Whole(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part, self.head = part, nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.part(x))


@pytest.mark.parametrize("frozen", [True, False])
def test_a_part_that_each_step_calls_by_itself_first_leaves_the_whole_what_it_is(frozen):
    """As a frozen teacher within the student, or an encoder that is tried out."""
    part = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).requires_grad_(not frozen)
    whole = Whole(part)
    optimizer = torch.optim.AdamW([each for each in whole.parameters() if each.requires_grad])
    with Recorder() as recorder:
        for _ in range(3):
            with torch.no_grad():
                part(torch.ones(4, 8))
            whole(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    rank = recorder.finish()
    units = {unit.name for unit in rank.units}
    assert (rank.info.num_params, rank.info.steps) == (352, 3)
    forwards = [{e.unit for e in rank.events if (e.op, e.phase, e.step) == ("forward", "forward", n)} for n in (2, 3)]
    assert forwards[0] == forwards[1] == {name.split()[0] for name in units}  # of which some are frozen
    assert not [
        e for e in rank.events if e.op == "hold" and e.category == "parameters" and e.unit in units and not e.spans
    ]


def train_what_was_called_before():
    model = models.build("gpt-tiny")
    inputs, targets = next(iter(models.batches("gpt-tiny", 2, dist.get_rank(), 1)))
    model(inputs)
    engine = ENGINES["fsdp2"](model, torch.optim.AdamW)
    for _ in range(2):
        engine.training_step(inputs, targets, models.loss)


def test_a_model_that_is_called_before_fsdp2_shards_it_has_one_owner(cluster):
    recording = cluster.record(train_what_was_called_before)
    assert recording.num_params == 212_352
    holding = {event.unit for event in recording.ranks[0].events if event.op == "hold" and event.step == 2}
    assert holding == {unit.name for unit in recording.units} == {"root", *(f"blocks.{n}" for n in range(4))}


def counted(rank):
    """The units whose size is known, and those that events name."""
    return {unit.name: unit.numel for unit in rank.units}, {event.unit for event in rank.events if event.unit}


def train_by(model, optimizer, steps=2):
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_part_that_trained_before_its_whole_keeps_its_units(record):
    def train():
        part = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
        train_by(part, torch.optim.Adam(part.parameters()))
        whole = Whole(part)
        train_by(whole, torch.optim.Adam(whole.parameters()))

    rank = record(train)
    units, named = counted(rank)
    assert units == {"0": 8 * 16 + 16, "1": 16 * 8 + 8, "Whole.root": 72}
    assert named == units.keys() | {"root"}  # that of the part, of which all is in units
    assert (rank.info.num_params, rank.info.steps) == (352, 4)
    steps = [{e.unit for e in rank.events if (e.op, e.step) == ("forward", step)} for step in (2, 4)]
    assert steps == [{"root", "0", "1"}, named]


def test_two_models_that_share_a_part_have_it_once_and_keep_the_rest(record):
    def train():
        part = nn.Linear(8, 8)
        models = Whole(part), Whole(part)
        optimizers = [torch.optim.Adam(model.parameters()) for model in models]
        for model, optimizer in 2 * list(zip(models, optimizers, strict=True)):
            train_by(model, optimizer, steps=1)

    rank = record(train)
    units, named = counted(rank)
    assert units == {"part": 72, "head": 72, "Whole.head": 72}
    assert named == units.keys() | {"root", "Whole.root"}
    assert rank.info.num_params * 4 == rank.info.state["parameters"] == 3 * 72 * 4
    holds = {e.unit: e.spans for e in rank.events if (e.op, e.category) == ("hold", "parameters")}
    assert holds == dict.fromkeys(units, ((0, 72),))


def as_it_is(model):
    return lambda x: model(x).square().mean()


def in_parts(model):
    return lambda x: model[2](model[1](model[0](x))).square().mean()


def train_called_by(stage, call):
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Tanh(), nn.Linear(8, 8))
    model[0](torch.ones(1, 8))
    engine = ENGINES[stage](model, torch.optim.AdamW, units=[])
    forward = call(engine.module if stage == "fsdp2" else engine.model)
    for _ in range(2):
        engine.backward(forward(torch.ones(4, 8)))
        engine.step()


CALLED = [(stage, call) for stage in ("ddp", "zero3", "fsdp1", "fsdp2") for call in (as_it_is, LossOf, in_parts)]


# FSDP gathers where the model itself is called.
@pytest.mark.parametrize(("stage", "call"), [pair for pair in CALLED if pair[0][0] != "f" or pair[1] is not in_parts])
def test_what_an_engine_trains_counts_once_however_it_is_called(cluster, stage, call):
    recording = cluster.record(train_called_by, stage, call)
    assert recording.num_params == 2 * 72
    assert {unit.name for unit in recording.units} == {"root"}
    assert {event.unit for event in recording.ranks[0].events if event.step == 2} == {"root", None}


def train_with_torchs_zero1():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW)
    wrapped(torch.ones(4, 8)).sum().backward()
    optimizer.step()


def train_with_it_behind_an_engine():
    engine = ENGINES["torch-zero1"](nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.optim.AdamW)
    engine.training_step(torch.ones(4, 8), torch.ones(4, 8), nn.functional.mse_loss)


@pytest.mark.parametrize("train", [train_with_torchs_zero1, train_with_it_behind_an_engine])
def test_what_an_optimizer_has_made_within_anothers_update_counts_as_state_from_then_on(cluster, train):
    for rank in cluster.record(train).ranks:
        sent = [e for e in rank.events if (e.kind, e.op, e.phase, e.step) == ("collective", "broadcast", "gather", 1)]
        assert sent
        assert all(event.live["optimizer_state"] > 0 for event in sent)


class MakesItAnew(torch.optim.Optimizer):
    """Momentum as many write it: in a new tensor at each update."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                state = self.state[parameter]
                state["momentum"] = 0.9 * state.get("momentum", 0) + parameter.grad
                parameter.sub_(0.1 * state["momentum"])


@pytest.mark.parametrize("stage", ["torch-zero1", "torch-ddp", "fsdp2"])
def test_state_that_each_update_makes_anew_is_state_in_the_next_step_too(cluster, stage):
    def train():
        engine = ENGINES[stage](nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), MakesItAnew)
        for _ in range(3):
            engine.training_step(torch.ones(4, 8), torch.ones(4, 8), nn.functional.mse_loss)

    for rank in cluster.record(train).ranks:
        later = [e for e in rank.events if e.step in (2, 3) and e.op in ("forward", "backward", "broadcast")]
        assert len({event.live["optimizer_state"] for event in later}) == 1
        assert later[0].live["optimizer_state"] > 0


def test_a_second_model_that_is_wrapped_after_its_first_call_keeps_its_names(cluster):
    def train():
        first, second = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        first(torch.ones(4, 8))
        second(torch.ones(4, 8))
        wrapped = DistributedDataParallel(second)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        for _ in range(2):
            wrapped(first(torch.ones(4, 8))).sum().backward()
            optimizer.step()

    rank = cluster.record(train).ranks[0]
    forwards = [event.unit for event in rank.events if (event.op, event.step) == ("forward", 2)]
    assert forwards == ["root", "Sequential.root", "Sequential.0"]


def by_backward(loss, weight):
    for part in (loss, loss):
        part.backward(retain_graph=True)


def by_grad(loss, weight):
    (weight.grad,) = torch.autograd.grad(loss, weight)


@pytest.mark.parametrize("differentiate", [by_backward, by_grad])
def test_each_update_of_a_loop_without_modules_is_a_step_of_its_own(record, differentiate):
    def train():
        weight = nn.Parameter(torch.ones(8, 8))
        optimizer = torch.optim.AdamW([weight])
        for _ in range(3):
            differentiate((torch.ones(4, 8) @ weight).square().mean(), weight)
            optimizer.step()
            optimizer.zero_grad()

    info = record(train).info
    assert (info.steps, info.state) == (3, {"parameters": 256, "gradients": 256, "optimizer_state": 512 + 4})


@pytest.mark.parametrize("fingerprints", [False, True])
def test_a_scripted_model_is_recorded_like_the_module_that_it_was_made_of(tmp_path, fingerprints):
    def train(make, path):
        model = make(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)))
        optimizer = torch.optim.AdamW(model.parameters())
        with zerolab.recording(path, steps=(1, 3), fingerprints=fingerprints):
            for _ in range(3):
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return zerolab.Recording.load(path)

    scripted, module = (
        train(torch.jit.script, tmp_path / "scripted.json"),
        train(lambda it: it, tmp_path / "module.json"),
    )
    assert scripted.info.steps == module.info.steps == 3
    assert (scripted.state, scripted.units) == (module.state, module.units)
