"""No sentence of the player says what the recording's own events do not say."""

import re
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import divided
import pytest
import torch
from showing import changed, in_order, state
from torch.distributed.fsdp import fully_shard

from zerolab import Cluster, RankError
from zerolab.engines import ENGINES
from zerolab.player import payload
from zerolab.player.owners import whole_of
from zerolab.recording.units import ROWS

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"
STAGES = ["ddp", "zero1", "zero2", "zero3", "fsdp2"]


def beats_of(tab, recording):
    """The beats, each with the events that it is made of."""
    known = {(event.rank, event.seq): event for event in recording.events}
    told = tab.evaluate(
        f"{PLAYER}.beats.list.map((b) => ({{ kind: b.kind, act: b.act, caption: b.caption, unit: b.units[0]?.name, "
        f"places: b.places.map((i) => [{PLAYER}.model.event(i).rank, {PLAYER}.model.event(i).seq]) }}))"
    )
    return [beat | {"events": [known[rank, seq] for rank, seq in beat["places"]]} for beat in told]


def held_next(recording, event, category):
    """The elements of its unit that the rank holds after the next change behind an event; now, if there is none."""
    holds = [
        one
        for one in recording.rank(event.rank).events
        if (one.op, one.category, one.unit) == ("hold", category, event.unit)
    ]
    return next((one.held for one in holds if one.seq > event.seq), holds[-1].held)


def says_a_collective(recording, beat):
    ranks, padded = recording.world_size, {unit.name: unit.padded for unit in recording.units}
    ops, caption = {event.op for event in beat["events"]}, beat["caption"]
    if {event.unit for event in beat["events"]} != {beat["unit"]}:
        return False
    if f"its {ranks} shards are gathered, so every rank has all of it" in caption:
        # FSDP2 frees the first tensors of a unit while the last are still in use.
        whole = all(held_next(recording, event, "parameters") > 0.99 * padded[event.unit] for event in beat["events"])
        return ops == {"all_gather"} and whole
    if "each owner sends its new parameters to all other ranks" in caption:
        return ops == {"all_gather"} and all(
            any(other.kind == "optimizer" and other.step == event.step for other in before)
            for event in beat["events"]
            for before in [recording.rank(event.rank).events[: event.seq]]
        )
    if "gradients are added up, each part on the rank that owns it" in caption:
        return ops == {"reduce_scatter"}
    return "gradients are added up, and all ranks get the sum" in caption and ops == {"all_reduce"}


@pytest.mark.parametrize("stage", STAGES)
def test_each_beat_says_what_its_own_events_did(recordings, show, stage):
    recording = recordings[stage]
    every = set(range(recording.world_size))
    beats = beats_of(show(recording, story=True), recording)
    for beat in beats:
        ranks, caption = {event.rank for event in beat["events"]}, beat["caption"]
        assert beat["kind"] == "keep" or ranks == every, caption
        if beat["kind"] == "collective":
            assert says_a_collective(recording, beat), caption
        if beat["kind"] == "compute":
            what = "the forward" if beat["events"][0].op == "forward" else "gradients"
            assert caption.casefold() == f"{beat['unit']}: every rank computes {what} of its own batch.".casefold()
        if beat["kind"] == "update":
            all_of_it = sum(unit.padded for unit in recording.units)
            kept = {}
            for one in recording.ranks[0].events:
                if one.op == "hold" and one.category == "optimizer_state":
                    kept[one.unit] = one.held
            assert ("quarter" in caption) == (4 * sum(kept.values()) == all_of_it), caption
    assert {"collective", "update"} < {beat["kind"] for beat in beats}


@pytest.mark.parametrize("stage", STAGES)
def test_each_event_says_its_own_unit_and_numbers(recordings, show, stage):
    recording = recordings[stage]
    known = {(event.rank, event.seq): event for event in recording.events}
    tab = show(recording)
    told = tab.evaluate(
        f"{PLAYER}.events.filter((e) => e.step === 2 && e.rank === 1).map(({{ index, rank, seq }}) => "
        f"{{ {PLAYER}.goto(index); return [rank, seq, {PLAYER}.state().caption]; }})"
    )
    for rank, seq, caption in told:
        event = known[rank, seq]
        assert caption.startswith(f"Rank {rank}")
        if "at its peak" in caption:
            continue
        assert event.unit is None or event.unit in caption, caption
        if event.kind == "collective" and event.parent is None:
            figures = [f"#{event.number}", f"sent {event.logical_bytes:,} byte", f"{event.numel:,} element"]
            assert all(figure in caption for figure in figures), caption
        if event.kind == "collective" and event.peer is not None:
            assert all(figure in caption for figure in (f"rank {event.peer}", f"{event.numel:,} element")), caption
        if event.op == "hold":
            assert f"{event.held:,}" in caption or not event.held or "all " in caption, caption
    assert len(told) > 50
    assert state(tab)["caption"] == told[-1][2]


@pytest.fixture(scope="module")
def two():
    with Cluster(world_size=2, device="cpu") as cluster:
        yield cluster


def stories(tab):
    story = f"{PLAYER}.story"
    return set(tab.evaluate(f"{story}.acts.map((_, i) => {story}.tell(i))"))


def one_step(optimizer):
    import torch.distributed as dist

    from zerolab import Zero1, models

    engine = Zero1(models.build("mlp-odd"), optimizer, lr=1e-3)
    [batch] = models.batches("mlp-odd", dist.get_world_size(), dist.get_rank(), 1)
    engine.training_step(*batch, models.loss)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_what_a_rank_updates_is_told_from_a_single_step_and_without_optimizer_state_too(two, show, optimizer):
    told = stories(show(two.record(one_step, optimizer)))
    (update,) = [text for text in told if text.startswith("Update")]
    assert update.startswith("Update: each rank updates only the 1/2 that it owns")
    (after,) = [text for text in told if text.startswith("After")]
    assert "each rank sends the 1/2 that it updated to all others" in after


def as_many_steps_as_the_rank_says():
    import torch.distributed as dist

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(1 + dist.get_rank()):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def all_steps_are_skipped():
    import torch.distributed as dist

    from zerolab import Zero2, models

    engine = Zero2(models.build("mlp-odd"), torch.optim.AdamW, lr=1e-3, precision="fp16")
    for inputs, targets in models.batches("mlp-odd", dist.get_world_size(), dist.get_rank(), 2):
        engine.training_step(inputs, targets, lambda outputs, wanted: 1e9 * models.loss(outputs, wanted))


def activations_go_from_rank_to_rank():
    import torch.distributed as dist

    class Stage(torch.nn.Linear):
        def forward(self, inputs):
            if dist.get_rank():
                dist.recv(inputs, 0)
                return super().forward(inputs)
            outputs = super().forward(inputs)
            dist.send(outputs.detach(), 1)
            return outputs

    model = Stage(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def test_an_update_that_one_rank_makes_is_not_told_of_all(two, show):
    recording = two.record(as_many_steps_as_the_rank_says)
    told = [beat["caption"] for beat in beats_of(show(recording), recording) if beat["kind"] == "update"]
    assert told[1:] == ["Update: rank 1 alone changes its parameters."]


def test_where_no_update_was_made_nothing_is_said_of_what_lasts_until_it(two, show):
    (backward,) = [text for text in stories(show(two.record(all_steps_are_skipped))) if text.startswith("Backward")]
    assert backward.endswith("added up over the ranks, each part on its owner.")


def test_of_ranks_that_send_each_other_activations_none_is_said_to_have_all_parameters(two, show):
    recording = two.record(activations_go_from_rank_to_rank)
    tab = show(recording)
    told = [*stories(tab), *(beat["caption"] for beat in beats_of(tab, recording))]
    assert "Forward: ranks send each other what they have computed, and go on with what they get." in told
    assert not [text for text in told if "all parameters" in text or "all of them" in text or "nothing is sent" in text]
    assert not [text for text in told if "own batch" in text]
    assert tab.evaluate(f"{PLAYER}.walk.chapters") == [], "which would say that each has a copy, and its own batch"
    assert "the same on every rank" not in tab.locator(".zl-ownership .zl-legend").inner_text()


def by_its_own_gradients_alone(*, exchanges=None):
    """Two steps, after each of which ranks have the highest loss of all, or the mean of their parameters."""
    from torch import distributed as dist

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if exchanges == "losses":
            dist.all_reduce(loss.detach(), op=dist.ReduceOp.MAX)
        for parameter in model.parameters() if exchanges == "parameters" else ():
            dist.all_reduce(parameter.data.div_(2))


@pytest.mark.parametrize("exchanges", [None, "losses", "parameters"])
def test_of_ranks_that_train_each_for_itself_nothing_is_called_the_same_and_no_gradient_the_mean(two, show, exchanges):
    recording = two.record(by_its_own_gradients_alone, exchanges=exchanges)
    tab = show(recording, story=True)
    assert "whole unit" in tab.locator(".zl-ownership .zl-legend").inner_text()
    told = [tab.inner_text(".zl-ownership"), *tab.evaluate(f"{PLAYER}.walk.chapters.map(({{ says }}) => says)")]
    assert len(told) > 5
    told += [*stories(tab), *(beat["caption"] for beat in beats_of(tab, recording))]
    assert not [text for text in told if re.search(r"same|copy|\bmean\b|added up", text)]


def test_under_tensor_parallelism_parts_are_drawn_in_their_owners_colours_and_none_is_called_a_whole(four, show):
    recording = four.record(divided.train)
    held = {}
    for event in recording.events:
        if event.op == "hold" and event.category in ("parameters", "optimizer_state") and event.spans:
            held.setdefault((event.rank, event.unit, event.category), []).append(event)
    for unit in payload(recording)["units"]:
        for rank in range(4):
            mine = whole_of(rank, unit["owners"])
            assert {owner for *_, owner in mine} == {rank, (rank + 2) % 4}, "of those that share its computing"
            own = tuple((start, stop) for start, stop, owner in mine if owner == rank)
            assert own == held[rank, unit["name"], "optimizer_state"][-1].spans
            most = max(event.held for event in held[rank, unit["name"], "parameters"])
            assert sum(stop - start for start, stop, _ in mine) == most
    tab = show(recording)
    told = [*stories(tab), *(beat["caption"] for beat in beats_of(tab, recording))]
    assert "Before the first step: each rank keeps its part of each unit." in told
    assert "Update: each rank changes what it has." in told
    assert "blocks.1: what the 2 ranks of a group keep of it is gathered, so that each of them has it." in told
    assert "root: its 2 shards are gathered, so every rank of the group has all of it." in told
    false = ("all of it", "own batch", "1/3", "third", "rank 0 sends")
    assert not [text for text in told if not text.startswith("root") and any(words in text for words in false)]
    assert "replicas" not in tab.locator(".zl-ownership .zl-legend").inner_text()


def test_what_is_computed_in_parts_is_combined_in_a_beat_of_its_own_once_for_all_groups(four, show):
    recording = four.record(divided.train)
    sent = [beat for beat in beats_of(show(recording), recording) if " are combined over " in beat["caption"]]
    found = [event for event in recording.events if event.op == "all_reduce" and event.kind == "collective"]
    found = [event for event in found if event.step and event.parent is None]
    told = [(event.rank, event.seq) for beat in sent for event in beat["events"]]
    assert sorted(told) == sorted((event.rank, event.seq) for event in found)
    assert all({event.rank for event in beat["events"]} == {0, 1, 2, 3} for beat in sent)
    assert all(beat["unit"] is None for beat in sent), "no piece of a unit flies"
    end = "8,192 elements are combined over the 2 ranks of a group, which all get the result."
    for passed, order in (("forward", (0, 1, 2, 3)), ("backward", (3, 2, 1, 0))):
        wanted = [f"blocks.{number}: within its {passed}, {end}" for number in order]
        assert [beat["caption"] for beat in sent if beat["act"] == passed] == 2 * wanted


def in_parts_of_the_sequence():
    """Two steps of blocks whose input and output each rank has a part of, along the batch's second dimension."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (4,))
    plan = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "2": RowwiseParallel(output_layouts=Shard(1)),
    }
    linear = [torch.nn.Linear(*both) for both in ((32, 64), (64, 32))]
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.LayerNorm(32), *linear))
    parallelize_module(model[0], mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(torch.ones(64, 8, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_what_a_forward_adds_up_is_no_gradient_and_has_no_owner(four, show):
    recording = four.record(in_parts_of_the_sequence)
    beats = [beat for beat in beats_of(show(recording), recording) if beat["kind"] == "collective"]
    told = [beat["caption"].partition(": ")[2] for beat in beats if beat["act"] == "forward"]
    gathered = "gathered, so every rank has all of them."
    combined = "combined over all ranks, each of which gets its own part of the result."
    many = f"within its forward, {4 * 64 * 8 * 32:,} elements are"  # each rank has 8 of 32
    assert told == 2 * [f"{many} {gathered}", f"{many} {combined}"]


def test_bytes_in_a_note_have_separators_as_all_other_numbers(recordings, show):
    known = recordings["ddp"]
    [first, *events] = known.ranks[0].events
    note = replace(first, kind="note", op="before recording", text="212400 bytes existed before", unit=None)
    told = changed(known, ranks=[replace(known.ranks[0], events=(note, *events)), *known.ranks[1:]])
    tab = show(told, f"#event={in_order(told).index(note) + 1}")
    assert state(tab)["caption"] == "Rank 0: 212,400 bytes existed before"


class Blocks(torch.nn.Module):
    """Three blocks, of which a forward may leave out the last, or raise behind the first."""

    def __init__(self, *, idle=False, raises=False):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.idle, self.raises = idle, raises

    def forward(self, inputs):
        for block in self.blocks[: 2 if self.idle else 3]:
            inputs = block(inputs)
            if self.raises:
                raise ValueError("behind the first block")
        return inputs


def over_a_mesh(shape, *, how, **options):
    """Two steps of the blocks, which FSDP2 shards over a mesh of this shape, in a loop of one's own."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
    model = Blocks(**how)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def four():
    with Cluster(world_size=4, device="cpu") as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["idle", "raises"])
@pytest.mark.parametrize(("shape", "shards"), [((4,), 4), ((2, 2), 2)])
def test_a_unit_that_no_forward_came_to_is_in_as_many_parts_as_the_others(four, show, shape, shards, how):
    with pytest.raises(RankError, match="behind the first") if how == "raises" else nullcontext() as raised:
        recording = four.record(over_a_mesh, shape, how={how: True})
    recording = recording if raised is None else raised.value.recording
    parts = [unit["owners"] for unit in payload(recording)["units"] if unit["numel"]]
    assert {len({owner for *_, owner in whole_of(rank, unit)}) for unit in parts for rank in range(4)} == {shards}
    told = stories(show(recording))
    assert f"Before the first step: each rank keeps 1/{shards} of every unit, its shard." in told
    assert not [text for text in told if "its part of" in text or "all of them" in text]


def few_rows(stage, widths):
    """Two steps with layers of these widths: FSDP2 gives all of a matrix with one row to one rank."""
    layers = [torch.nn.Linear(*both, bias=False) for both in pairwise(widths)]
    engine = ENGINES[stage](torch.nn.Sequential(*layers), torch.optim.AdamW, lr=1e-3)
    for _ in range(2):
        engine.training_step(torch.ones(2, widths[0]), torch.zeros(2, widths[-1]), torch.nn.functional.mse_loss)


@pytest.mark.parametrize(
    ("stage", "widths"), [("fsdp2", (1000, 1)), ("fsdp2", (64, 64, 1)), ("fsdp2", (7, 5)), ("zero3", (1, 1))]
)
def test_of_a_unit_that_is_cut_into_unlike_parts_nobody_is_said_to_keep_an_equal_one(four, show, stage, widths):
    recording = four.record(few_rows, stage, widths)
    tab = show(recording)
    walk = tab.evaluate(f"{PLAYER}.walk.chapters")
    told = [*stories(tab), *(one["caption"] for one in beats_of(tab, recording)), *(one["says"] for one in walk)]
    assert any("each rank keeps what it owns of every unit, its shard." in text for text in told)
    assert any("Each of 4 ranks keeps what it owns of all parameters" in text for text in told)
    equal = ("1/4", "quarter", "4 shards", "its own part", "less its own")
    assert not [text for text in told if any(words in text for words in equal)]
    assert "Every rank holds everything" not in str(walk)
    assert "copy" not in tab.locator(".zl-ownership .zl-legend").inner_text(), "the root has no parameters of its own"


def halves_that_nobody_gathers(mesh_shape):
    """A step of two layers, the first cut by rows and the second by columns."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("data", "tensor"))
    block = torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 8, bias=False))
    model = torch.nn.Sequential(block)
    parallelize_module(block, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("mesh_shape", [(1, 4), (2, 2)])
def test_of_parts_that_nobody_gathers_none_is_said_to_be(four, show, mesh_shape):
    recording = four.record(halves_that_nobody_gathers, mesh_shape)
    for unit in payload(recording)["units"]:
        if unit["numel"]:
            wholes = [whole_of(rank, unit["owners"]) for rank in range(4)]
            assert {len({owner for *_, owner in whole}) for whole in wholes} == {mesh_shape[1]}
    tab = show(recording)
    told = stories(tab)
    assert "Forward: every rank computes with its own part of each unit; none is gathered." in told
    assert not [text for text in told if "own batch" in text or "gathered just" in text]
    assert "replicas" not in tab.locator(".zl-ownership .zl-legend").inner_text()


def test_parts_that_are_gathered_and_kept_are_no_wholes_either(four, show):
    told = stories(show(four.record(divided.train, reshard_after_forward=False)))
    assert "Before the first step: each rank keeps its part of each unit." in told
    assert not [text for text in told if "own batch" in text or "1/3" in text]


def acts_of(tab, rank):
    """A rank's acts in the first step, each as often as it begins anew."""
    acts = tab.evaluate(
        f"{PLAYER}.story.acts.filter((_, i) => ((e) => e.rank === {rank} && e.step === 1)({PLAYER}.model.event(i)))"
    )
    return [act for before, act in zip([None, *acts], acts, strict=False) if act != before]


def test_what_is_added_up_within_a_forward_is_no_backward(four, show):
    tab = show(four.record(divided.train))
    assert acts_of(tab, 0) == ["forward", "backward", "update"]


def a_forward_alone(width):
    """A forward, without gradients, of two layers of which each rank has a part."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    block = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Linear(width, width))
    model = torch.nn.Sequential(block)
    parallelize_module(block, init_device_mesh("cpu", (4,)), {"0": ColwiseParallel(), "1": RowwiseParallel()})
    with torch.no_grad():
        model(torch.ones(2, 8))


@pytest.mark.parametrize("width", [16, 2 * ROWS])
def test_activations_that_are_added_up_are_no_gradients_and_the_batch_is_shared(four, show, width):
    recording = four.record(a_forward_alone, width)
    tab = show(recording)
    told = [*stories(tab), *(beat["caption"] for beat in beats_of(tab, recording))]
    assert not [text for text in told if "radient" in text or "Backward" in text or "own batch" in text]
    assert [text for text in told if text.endswith("elements: combined over all ranks, which all get the result.")]


def cut_by_rows(rows, width, *, alone):
    """A step of a matrix that is cut by rows, and of another, which is cut by columns unless the first is `alone`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = torch.nn.Sequential(torch.nn.Linear(8, width, bias=False), torch.nn.Linear(width, 4, bias=False))
    first = ColwiseParallel(output_layouts=Replicate()) if alone else ColwiseParallel()
    plan = {"0": first} if alone else {"0": first, "1": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (4,)), plan)
    model(torch.ones(rows, 8)).sum().backward()


@pytest.mark.parametrize(("rows", "alone"), [(8, True), (12, True), (16, False)])
def test_what_was_computed_is_not_called_a_unit_that_is_as_large(four, show, rows, alone):
    recording = four.record(cut_by_rows, rows, 16, alone=alone)
    (sent,) = [beat for beat in beats_of(show(recording), recording) if beat["kind"] == "collective"]
    sizes = [unit.numel for unit in recording.units]
    assert sent["events"][0].numel in {*sizes, sum(sizes)}
    assert sent["unit"] is None


def test_a_matrix_with_fewer_rows_than_ranks_which_torch_gathers_is_said_to_be_gathered(four, show):
    recording = four.record(cut_by_rows, 2, 3, alone=True)
    tab = show(recording)
    told = [beat["caption"] for beat in beats_of(tab, recording)]
    assert "Unit 0: what all ranks keep of it is gathered, so that each of them has it." in told
    assert not [text for text in stories(tab) if "none is gathered" in text]


def a_matrix_cut_by_rows_twice():
    """A step of a matrix whose halves two pairs of ranks share, one behind the other, each again cut by rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False))
    fully_shard(parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel()}), mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(2, 8)).clone().sum().backward()
    optimizer.step()


def test_groups_of_ranks_whose_parts_lie_one_behind_the_other_are_told_apart(four, show):
    recording = four.record(a_matrix_cut_by_rows_twice)
    (unit,) = [unit for unit in payload(recording)["units"] if unit["numel"]]
    assert unit["owners"] == [[[0, 32, 0], [32, 64, 2]], [[64, 96, 1], [96, 128, 3]]]
    assert [whole_of(rank, unit["owners"]) for rank in range(4)] == 2 * unit["owners"]


def test_of_a_unit_that_no_forward_came_to_the_owners_are_those_that_share_the_others(four):
    recording = four.record(divided.train, idle=True)
    for unit in payload(recording)["units"]:
        for rank in range(4):
            assert {owner for *_, owner in whole_of(rank, unit["owners"])} == {rank, (rank + 2) % 4}


def shards_in_a_loop_of_ones_own():
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(torch.nn.Linear(8, 8), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_where_bytes_are_known_and_not_their_elements_nobody_is_said_to_have_all(two, show):
    told = stories(show(two.record(shards_in_a_loop_of_ones_own)))
    assert "Update: which parameters a rank updates was not recorded." in told
    assert not [text for text in told if "all parameters" in text or "all of them" in text]
