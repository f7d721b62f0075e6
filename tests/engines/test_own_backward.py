"""Loops that call `loss.backward()` themselves: taken as `engine.backward(loss)` is, or refused; real ranks."""

import pytest
import torch
from test_any_step import (
    Failing,
    assert_all_close,
    assert_as_three_plain_steps,
    my_rows,
    on_every_stage,
    plain_steps,
    sentence_of,
    step,
)
from test_unused import OPTIMIZERS, by_torch, differences, rows
from test_unused import make as make_choosing
from torch import nn
from torch.utils.checkpoint import checkpoint
from zoo import BY_RANK, MODELS, STAGES, batch, call, distance, loss_of, make

from zerolab.engines import ENGINES
from zerolab.engines.flat import Presence

SECOND = "a second backward() before step()"
TWO_AT_ONCE = "a backward began before the last one ended"


def alone(losses, max_norm=None, name="plain"):
    """One process: each item of `losses` is a function of the model, and one step."""
    model = make(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for loss in losses:
        loss(model).backward()
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_loops_own_backward_trains_as_one_process_does(clusters, world_size):
    def own_loop(engine, _rank):
        for number in range(3):
            engine.optimizer.zero_grad()
            loss_of(engine.model(my_rows(number))).backward()
            engine.clip_grad_norm_(0.3)
            engine.step()
        return engine.state_dict()

    reference = alone([lambda model, number=number: loss_of(model(batch(number))) for number in range(3)], 0.3)
    assert_all_close(clusters(world_size).run(on_every_stage, own_loop), reference)


def both_ways(names, **options):
    """Of each model and stage, how far a loop's own backward leads from where `engine.backward` leads."""
    import torch.distributed as dist

    far = {}
    for name in names:
        for stage in STAGES[:3] if "whole units unused" in name else STAGES:
            ends = []
            for own in (False, True):
                engine = ENGINES[stage](make(name), torch.optim.SGD, lr=0.1, **options)
                torch.manual_seed(dist.get_rank())
                for number in range(2):  # in the first the engine finds out whose backward it is
                    loss = loss_of(call(engine.model, my_rows(number)))
                    loss.backward() if own else engine.backward(loss)
                    engine.step()
                ends.append(engine.state_dict())
            far[name, stage] = distance(*ends)
    return {case: distance for case, distance in far.items() if distance}


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_on_awkward_models_it_leads_to_the_same_bits_as_engine_backward(clusters, world_size):
    assert clusters(world_size).run(both_ways, [*MODELS, *BY_RANK]) == [{}] * world_size


@pytest.mark.parametrize(
    "options", [{"overlap": False}, {"precision": "bf16", "reduce_dtype": torch.float32}, {"offload": True}]
)
def test_it_does_with_every_option(clusters, options):
    assert clusters(2).run(both_ways, ["plain", "recomputed activations"], **options) == [{}] * 2


def chosen_by_hand(stage, micro_batches, max_norm):
    import torch.distributed as dist

    optimizer_cls, rank = torch.optim.AdamW, dist.get_rank()
    engine = ENGINES[stage](make_choosing(), optimizer_cls, **OPTIMIZERS[optimizer_cls])
    for number in range(0, 4, micro_batches):
        losses = [engine.model(rows(each, rank), each, rank) for each in range(number, number + micro_batches)]
        for each in losses[:-1]:
            with engine.accumulate():
                each.square().mean().backward()
        losses[-1].square().mean().backward()
        engine.clip_grad_norm_(max_norm)
        engine.step()
    return engine.state_dict(), engine.optimizer_state_dict()["state"]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_unused_parameters_micro_batches_and_clipping_are_those_of_torch_ddp(clusters, world_size):
    def compare():
        found = {}
        for micro_batches in (1, 2):
            theirs = by_torch(torch.optim.AdamW, OPTIMIZERS[torch.optim.AdamW], micro_batches, 0.1)
            for stage in STAGES:
                if wrong := differences(chosen_by_hand(stage, micro_batches, 0.1), theirs):
                    found[stage, micro_batches] = wrong
        return found

    assert clusters(world_size).run(compare) == [{}] * world_size


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", ["plain", "a weight used a second time without gradient", "recomputed activations"])
def test_forwards_may_all_come_before_their_backwards(clusters, name, own):
    def forwards_first(engine, _rank):
        for number in range(2):
            losses = [loss_of(engine.model(my_rows(number + part))) / 3 for part in range(3)]
            for loss in losses[:2]:
                with engine.accumulate():
                    loss.backward() if own else engine.backward(loss)
            losses[2].backward() if own else engine.backward(losses[2])
            engine.step()
        return engine.state_dict()

    def whole(model, number):
        return sum(loss_of(model(batch(number + part))) for part in range(3)) / 3

    reference = alone([lambda model, number=number: whole(model, number) for number in range(2)], name=name)
    assert_all_close(clusters(2).run(on_every_stage, forwards_first, model=lambda: make(name)), reference)


def test_two_losses_over_one_graph_add_up_and_so_do_the_two_kinds_of_backward(clusters):
    def two_losses(engine, _rank):
        for number in range(3):
            outputs = engine.model(my_rows(number))
            with engine.accumulate():
                outputs.square().mean().backward(retain_graph=True)
            if number == 1:
                engine.backward(outputs.sin().mean())
            else:
                outputs.sin().mean().backward()
            engine.step()
        return engine.state_dict()

    def both(model, number):
        outputs = model(batch(number))
        return outputs.square().mean() + outputs.sin().mean()

    reference = alone([lambda model, number=number: both(model, number) for number in range(3)])
    assert_all_close(clusters(2).run(on_every_stage, two_losses), reference)


def test_a_second_backward_before_the_step_is_refused_and_the_gradients_stay(clusters):
    def twice(engine, _rank):
        sentences = []
        for number in range(3):
            loss = loss_of(engine.model(my_rows(number)))
            loss.backward(retain_graph=True)
            sentences.append(sentence_of(loss.backward))
            sentences.append(sentence_of(lambda: engine.backward(loss_of(engine.model(my_rows(7))))))
            engine.step()
        return sentences, engine.state_dict()

    reference = plain_steps(3)
    for ends in clusters(2).run(on_every_stage, twice):
        for stage in STAGES:
            sentences, state = ends[stage]
            assert all(SECOND in sentence or "engine.step()" in sentence for sentence in sentences)
            assert distance(state, reference) <= 1e-6


def test_a_backward_that_fails_leaves_no_trace_in_the_next_step(clusters):
    def failing(engine, _rank):
        for number in range(3):
            with engine.accumulate():
                loss_of(engine.model(my_rows(4))).backward()
            handle = engine.model.blocks[1].register_forward_hook(lambda _module, _inputs, out: Failing.apply(out))
            with pytest.raises(ArithmeticError):
                loss_of(engine.model(my_rows(6))).backward()
            handle.remove()
            assert "step() without gradients" in sentence_of(engine.step)
            if number == 1:
                engine.zero_grad()
            loss = loss_of(engine.model(my_rows(number)))
            loss.backward() if number else engine.backward(loss)
            engine.step()
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, failing))


def test_after_a_failure_a_backward_without_a_forward_is_refused_because_gradients_would_mix(clusters):
    def again(engine, _rank):
        fails = True

        def hook(gradient):
            if fails:
                raise ArithmeticError("as planned")

        outputs = engine.model(my_rows(0))
        engine.model.blocks[0].up.weight.register_hook(hook)  # the head and two blocks have theirs by then
        with pytest.raises(ArithmeticError):
            loss_of(outputs).backward(retain_graph=True)
        fails = False
        sentence = sentence_of(lambda: loss_of(outputs).backward(retain_graph=True))
        engine.zero_grad()
        whole = [flat.layout.name for flat in engine.flats if flat.presence is not Presence.RELEASED]
        loss_of(outputs).backward()
        engine.step()
        return sentence, engine.state_dict(), whole

    reference = plain_steps(1)
    for ends in clusters(2).run(on_every_stage, again):
        for stage in STAGES:
            sentence, state, whole = ends[stage]
            assert whole == [] or stage != "zero3"
            assert "its gradients are dropped now" in sentence or "drop gradients by engine.zero_grad()" in sentence
            assert distance(state, reference) <= 1e-6, stage


def test_a_backward_within_a_backward_is_refused_whichever_of_them_is_the_loops_own(clusters):
    def nested(engine, _rank):
        sentences = []
        for inner, outer in [(0, 0), (0, 1), (1, 0), (1, 1)]:
            ways = engine.backward, torch.Tensor.backward
            loss, other = loss_of(engine.model(my_rows(0))), loss_of(engine.model(my_rows(1)))
            weight = engine.model.blocks[1].up.weight
            hook = weight.register_hook(lambda _, run=ways[inner], other=other: run(other))
            sentences.append(sentence_of(lambda run=ways[outer], loss=loss: run(loss)))
            hook.remove()
        step(engine, 0)
        return sentences, engine.state_dict()

    reference = plain_steps(1)
    for ends in clusters(2).run(on_every_stage, nested):
        for stage in STAGES:
            sentences, state = ends[stage]
            assert all(TWO_AT_ONCE in sentence or "is in the engine" in sentence for sentence in sentences)
            assert distance(state, reference) <= 1e-6, stage


def test_reentrant_checkpointing_is_refused_and_what_is_told_instead_works(clusters):
    def reentrant(engine, _rank):
        def loss(use_reentrant):
            x = engine.model.entry(my_rows(0))
            for block in engine.model.blocks:
                x = checkpoint(block, x, use_reentrant=use_reentrant)
            return loss_of(engine.model.head(x))

        sentence = sentence_of(loss(True).backward)
        loss(False).backward()
        engine.step()
        return sentence, engine.state_dict()

    reference = plain_steps(1)
    for ends in clusters(2).run(on_every_stage, reentrant):
        assert all("use_reentrant=False" in ends[stage][0] for stage in STAGES)
        assert all(distance(ends[stage][1], reference) <= 1e-6 for stage in STAGES)


def test_a_model_that_has_changed_is_refused_as_by_engine_backward(clusters):
    def changed(engine, _rank):
        engine.model.blocks[0].up.bias.requires_grad_(False)
        loss_of(engine.model(my_rows(0))).backward()  # frozen later: it gets none
        engine.step()
        engine.model.head = nn.Linear(6, 1)
        late = sentence_of(lambda: loss_of(engine.model(my_rows(0))).backward())
        return late, sentence_of(engine.step)

    for sentences in clusters(2).run(on_every_stage, changed):
        for late, without in sentences.values():
            assert "'head.weight' was not there when the engine was made" in late
            assert "step() without gradients" in without


def test_a_gradient_that_is_only_asked_for_is_no_backward(clusters):
    def asking(engine, _rank):
        for number in range(3):
            rows = my_rows(number).requires_grad_()
            loss = loss_of(engine.model(rows))
            (by_input,) = torch.autograd.grad(loss, rows, retain_graph=True)
            with engine.full_parameters():
                (by_weight,) = torch.autograd.grad(loss, engine.model.head.weight, retain_graph=True)
            loss.backward()
            torch.testing.assert_close(rows.grad, by_input)
            assert by_weight.shape == engine.model.head.weight.shape
            engine.step()
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, asking))


def test_a_backward_of_the_loops_own_that_is_to_have_a_graph_is_refused_and_what_is_told_instead_works(clusters):
    def penalised(loss, model):
        (slope,) = torch.autograd.grad(loss, model.head.weight, create_graph=True)
        return loss + slope.square().sum()

    def with_graph(engine, _rank):
        sentence = sentence_of(lambda: loss_of(engine.model(my_rows(9))).backward(create_graph=True))
        for number in range(3):
            with engine.full_parameters():
                penalised(loss_of(engine.model(my_rows(number))), engine.model).backward()
            engine.step()
        return sentence, engine.state_dict()

    model = make("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        optimizer.zero_grad()
        for part in batch(number).chunk(2):
            (penalised(loss_of(model(part)), model) / 2).backward()
        optimizer.step()
    for ends in clusters(2).run(on_every_stage, with_graph):
        assert all("torch.autograd.grad(..., create_graph=True)" in ends[stage][0] for stage in STAGES)
        assert all(distance(ends[stage][1], model.state_dict()) <= 1e-6 for stage in STAGES)


def test_a_backward_for_some_parameters_alone_leaves_the_others_alone(clusters):
    def some(engine, _rank):
        for number in range(3):
            loss_of(engine.model(my_rows(number))).backward(inputs=list(engine.model.blocks[1].parameters()))
            engine.step()
        return engine.state_dict()

    model = make("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        loss_of(model(batch(number))).backward(inputs=list(model.blocks[1].parameters()))
        optimizer.step()
        optimizer.zero_grad()
    assert_all_close(clusters(2).run(on_every_stage, some), model.state_dict())


def test_hooks_on_finished_gradients_are_called_before_the_engine_takes_them_from_the_first_backward_on(clusters):
    def build():
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(3)))

    def halve(parameter):
        parameter.grad *= 0.5

    def hooked(engine, _rank):
        for parameter in engine.model.parameters():
            parameter.register_post_accumulate_grad_hook(halve)
        engine.model(my_rows(0)).sin().mean().backward()
        engine.step()
        return engine.state_dict()

    reference = build()
    reference(batch(0)).sin().mean().backward()
    torch.optim.SGD(reference.parameters(), lr=0.05).step()
    assert_all_close(clusters(2).run(on_every_stage, hooked, model=build), reference.state_dict())


def test_two_engines_may_share_a_backward(clusters):
    def sharing():
        ends = {}
        for stage in STAGES:
            torch.manual_seed(0)
            first, second = (ENGINES[stage](make("plain"), torch.optim.SGD, lr=0.1) for _ in range(2))
            for number in range(3):
                (loss_of(first.model(my_rows(number))) * loss_of(second.model(my_rows(number + 1)))).backward()
                first.step()
                second.step()
            ends[stage] = {**first.state_dict(), **{f"second {k}": v for k, v in second.state_dict().items()}}
        return ends

    first, second = clusters(2).run(sharing)
    for ends in (first, second):
        assert all(distance(ends[stage], ends["ddp"]) <= 1e-6 for stage in STAGES)
        assert not torch.equal(ends["ddp"]["head.weight"], make("plain").head.weight)


def test_what_the_loss_of_another_engine_brings_is_dropped_as_in_one_process(clusters):
    def models():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)), make("plain")

    def adversaries(maker, judge, making, judging, rows):
        """The judge is not frozen while the maker learns from it, and forgets before its own turn."""
        for number in range(3):
            made = maker(rows(number))
            judging.zero_grad()
            (judge(made.detach()).mean() - judge(rows(number)).mean()).backward()
            judging.step()
            making.zero_grad()
            (-judge(made).mean()).backward()
            making.step()

    def on_ranks():
        ends = {}
        for stage in STAGES:
            maker, judge = models()
            making, judging = (ENGINES[stage](model, torch.optim.SGD, lr=0.1) for model in (maker, judge))
            adversaries(maker, judge, making, judging, my_rows)
            ends[stage] = {**making.state_dict(), **judging.state_dict()}
        return ends

    maker, judge = models()
    adversaries(maker, judge, *(torch.optim.SGD(model.parameters(), lr=0.1) for model in (maker, judge)), batch)
    assert_all_close(clusters(2).run(on_ranks), {**maker.state_dict(), **judge.state_dict()})


@pytest.mark.slow  # it compiles
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_trains_by_it_as_the_same_model_does(clusters):
    def compiled(engine, _rank):
        model = torch.compile(engine.model, backend="aot_eager")
        for number in range(3):
            loss_of(model(my_rows(number))).backward()
            engine.step()
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, compiled))


def test_ranks_whose_own_backwards_need_different_units_are_refused_by_zero3(clusters):
    def differing(engine, rank):
        engine.model(my_rows(0))
        x = engine.model.entry(my_rows(0))
        outputs = [block(x) for block in engine.model.blocks]
        sentence = sentence_of(lambda: loss_of(sum(outputs[rank:])).backward())
        step(engine, 0)
        return sentence

    for ends in clusters(2).run(on_every_stage, differing, stages=["zero3"]):
        assert "the units that a forward used and a backward needs differ between ranks" in ends["zero3"]


def recorded(stage, own):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), *(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4)))
    engine = ENGINES[stage](model, torch.optim.AdamW, lr=1e-3)
    for _ in range(3):
        loss = nn.functional.mse_loss(engine.model(torch.arange(4)), torch.zeros(4, 8))
        loss.backward() if own else engine.backward(loss)
        engine.step()


@pytest.mark.parametrize("stage", STAGES)
def test_a_recording_of_it_shows_the_same_events_in_the_same_phases_and_the_same_peak(clusters, stage):
    theirs, own = (clusters(2).record(recorded, stage, own).ranks[0] for own in (False, True))
    events = [
        [(e.step, e.phase, e.kind, e.op, e.unit) for e in run.events if e.phase != "setup"] for run in (theirs, own)
    ]
    assert events[0] == events[1]  # under zero3 the first comparison comes from within the first backward
    assert theirs.info.peak == own.info.peak
