"""When units are whole under ZeRO-3: while all parameters are asked for, and behind what a unit gives to others."""

from functools import partial

import pytest
import torch
from test_any_step import assert_all_close, assert_as_three_plain_steps, my_rows, on_every_stage, sentence_of, step
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode
from zoo import STAGES, WIDTH, Block, Stack, batch, distance, loss_of, make

from zerolab.engines import ENGINES


@pytest.mark.parametrize("keywords", [{}, {"release_after_forward": False}])
def test_what_runs_while_all_parameters_are_asked_for_leaves_them_whole(clusters, keywords):
    def averaging(engine, rank):
        step(engine, 0)
        with engine.full_parameters(), torch.no_grad():
            trained = [parameter.clone() for parameter in engine.model.parameters()]
            for parameter in engine.model.parameters():
                parameter.mul_(0.5)
            outside = engine.model.eval()(batch(5))
            with engine.full_parameters():
                assert torch.equal(outside, engine.model(batch(5)))
            for parameter, before in zip(engine.model.parameters(), trained, strict=True):
                parameter.copy_(before)
        engine.model.train()
        step(engine, 1)
        with engine.full_parameters():
            step(engine, 2)
            seen = {name: parameter.detach().clone() for name, parameter in engine.model.named_parameters()}
        ends = engine.state_dict()
        assert all(torch.equal(ends[name], value) for name, value in seen.items())  # they are those of after the step
        held = [flat.layout.name for flat in engine.flats if flat.whole.untyped_storage().size()]
        assert held == ([] if engine.stage == "zero3" else [flat.layout.name for flat in engine.flats])
        return ends

    stages = ["zero3"] if keywords else STAGES
    assert_as_three_plain_steps(clusters(2).run(on_every_stage, averaging, stages=stages, **keywords))


def test_a_step_while_all_parameters_are_asked_for_leaves_those_kept_whole_alone(clusters):
    def whole_in_a_step(engine, _rank):
        step(engine, 0)
        with engine.full_parameters():
            step(engine, 1)
        step(engine, 2)
        return engine.state_dict()

    ends = clusters(2).run(on_every_stage, whole_in_a_step, replicate=lambda _, parameter: parameter.ndim < 2)
    assert_as_three_plain_steps(ends)


class Positions(nn.Module):
    """Gives some rows of its parameter, as they lie there, or the parameter itself."""

    def __init__(self, whole):
        super().__init__()
        self.whole, self.table = whole, nn.Parameter(torch.randn(12, WIDTH))

    def forward(self, x):
        return {"table": self.table if self.whole else self.table[: len(x)].t()}


class Placed(nn.Module):
    """Adds up what two units give; beside its outputs it gives a part of its own parameter."""

    def __init__(self, whole):
        super().__init__()
        self.parts = nn.ModuleList([Block(), Positions(whole)])
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        table = self.parts[1](x)["table"]
        table = table[: len(x)] if self.parts[1].whole else table.t()
        return (self.parts[0](x) + table) * self.scale, self.scale[:2]


def placed_steps(stage, whole, **options):
    """Two steps in which every rank has the same rows, and an evaluation: all outputs, and the end."""
    torch.manual_seed(0)
    engine, seen = ENGINES[stage](Placed(whole), torch.optim.SGD, lr=0.1, **options), []
    for number in range(2):
        outputs, scale = engine.model(batch(number)[:4])
        engine.backward(outputs.sin().mean() + scale.square().sum())
        seen += [outputs, scale.clone()]
        engine.step()
    with torch.no_grad():
        seen += engine.model(batch(2)[:4])
    return [value.detach().clone() for value in seen], engine.state_dict()


@pytest.mark.parametrize("whole", [False, True])
def test_a_unit_may_give_a_part_of_its_parameters_to_others(clusters, whole):
    def compared():
        expected, end = placed_steps("ddp", whole)
        for options in ({}, {"release_after_forward": False}):
            seen, ours = placed_steps("zero3", whole, **options)
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(seen, expected, strict=True))
            assert distance(ours, end) <= 1e-6
        return True

    assert clusters(2).run(compared) == [True, True]


class Kept:
    """What no map over containers reaches."""

    def __init__(self, value):
        self.value = value


class Keeping(Positions):
    """Gives its rows in an object."""

    def forward(self, x):
        return Kept(super().forward(x)["table"])


def test_a_part_of_a_units_parameters_in_an_object_is_refused_before_its_memory_goes(clusters):
    def keeping(engine, _rank):
        return sentence_of(lambda: engine.model(my_rows(0))) if engine.stage == "zero3" else ""

    for sentences in clusters(2).run(on_every_stage, keeping, model=lambda: nn.Sequential(Keeping(False))):
        assert "'0' gives a part of its parameters to others in a Kept" in sentences["zero3"]


class Handing(nn.Linear):
    """Hands its weight on in an object, beside its rows; nobody else uses it."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(WIDTH, WIDTH)

    def forward(self, x):
        kept = Kept(super().forward(x))
        kept.weight = self.weight
        return kept


def test_a_parameter_itself_may_lie_in_an_object_for_it_says_that_it_is_released(clusters):
    def passing(engine, _rank):
        engine.backward(loss_of(engine.model(batch(0)).value))
        engine.step()
        with torch.no_grad():
            kept = engine.model(batch(1))
        return kept.value, sentence_of(kept.weight.sum) if engine.stage == "zero3" else ""

    for ends in clusters(2).run(on_every_stage, passing, model=lambda: nn.Sequential(Handing())):
        assert torch.allclose(ends["zero3"][0], ends["ddp"][0], atol=1e-6)
        assert "'0.weight' is released" in ends["zero3"][1]


def test_torch_func_works_while_all_parameters_are_whole(clusters):
    def differentiating(engine, _rank):
        rows = my_rows(0)

        def loss(parameters):
            return loss_of(torch.func.functional_call(engine.model, parameters, (rows,)))

        with engine.full_parameters():
            whole = {name: parameter.detach().clone() for name, parameter in engine.model.named_parameters()}
            of_weights = torch.func.grad(loss)(whole)
            of_rows = torch.func.grad(lambda values: loss_of(engine.model(values)))(rows)
        for number in range(3):
            step(engine, number)
        return engine.state_dict(), [*of_weights.values(), of_rows]

    results = clusters(2).run(on_every_stage, differentiating)
    assert_as_three_plain_steps([{stage: found[0] for stage, found in ends.items()} for ends in results])
    for ends in results:
        for _, gradients in ends.values():
            for found, expected in zip(gradients, ends["ddp"][1], strict=True):
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("name", "own"), [("plain", True), ("plain", False), ("whole frozen blocks", True)])
def test_the_graph_of_a_gradient_needs_its_units_until_its_backward_whatever_runs_before(clusters, name, own):
    def penalised(model, rows):
        several = [(rows + shift).requires_grad_() for shift in range(2)]
        slopes = [torch.autograd.grad(model(rows).sum(), rows, create_graph=True)[0] for rows in several]
        return sum(slope.square().sum(-1).mean() for slope in slopes) / 2

    def training(engine, _rank):
        for number in range(3):
            losses = [penalised(engine.model, my_rows(number + part)) / 2 for part in range(2)]
            with torch.no_grad():
                engine.model(my_rows(9))
            with engine.accumulate():
                losses[number % 2].backward() if own else engine.backward(losses[number % 2])
            losses[1 - number % 2].backward() if own else engine.backward(losses[1 - number % 2])
            whole = [flat.layout.name for flat in engine.flats if flat.whole.untyped_storage().size()]
            assert whole == [] or engine.stage != "zero3"
            engine.step()
        return engine.state_dict()

    model = make(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        (sum(penalised(model, batch(number + part)) for part in range(2)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_all_close(clusters(2).run(on_every_stage, training, model=partial(make, name)), model.state_dict())


def test_a_forward_that_raised_leaves_no_unit_running_for_a_step_by_parts(clusters):
    def loss_by_parts(model, number):
        x = model.entry(my_rows(number))
        for block in model.blocks:
            x = block(x)
        return loss_of(model.head(x)) / 2

    def by_parts(engine, _rank):
        for number in range(3):
            with pytest.raises(TypeError):
                engine.model.blocks[0](None)
            with engine.accumulate():
                engine.backward(loss_by_parts(engine.model, number))
            engine.backward(loss_by_parts(engine.model, number))
            with pytest.raises(TypeError):
                engine.model(None)
            engine.step()
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, by_parts))


class Biased(Block):
    """Takes and gives a pair, with a parameter that it does not own."""

    def forward(self, pair):
        return super().forward(pair[0]) * pair[1], pair[1]


class Passing(Stack):
    """Hands a parameter of its own from block to block."""

    def __init__(self):
        super().__init__(3, Biased)
        self.bias = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        pair = self.entry(x), self.bias
        for block in self.blocks:
            pair = block(pair)
        return self.head(pair[0])


def test_what_lives_longer_than_a_step_keeps_no_hooks_of_the_units_it_passed_through(clusters):
    def passing(engine, _rank):
        rows = my_rows(0).requires_grad_()
        for _ in range(3):
            with torch.no_grad():
                engine.model(rows)
            engine.backward(loss_of(engine.model(rows)))
            engine.step()
        return sum(len(tensor._backward_hooks or ()) for tensor in (engine.model.bias, rows))

    assert clusters(2).run(on_every_stage, passing, model=Passing) == [dict.fromkeys(STAGES, 0)] * 2


class Encoder(Stack):
    """Is used by a method, and never called."""

    def encode(self, x):
        return self.forward(x)


def test_a_model_that_is_used_by_its_methods_alone_is_known_from_the_second_step_on(clusters):
    """The ranks compare each unit only as long as its place in a forward is new."""

    def encoding():
        from zerolab.engines import residency

        compared, ends = [], {}
        compare = residency.check_same_on_all_ranks
        residency.check_same_on_all_ranks = lambda values, what: compared[-1].append(what) or compare(values, what)
        for stage in STAGES:
            torch.manual_seed(0)
            engine = ENGINES[stage](Encoder(), torch.optim.SGD, lr=0.1)
            for number in range(3):
                compared.append([])
                engine.backward(loss_of(engine.model.encode(my_rows(number))))
                engine.step()
            ends[stage] = engine.state_dict()
        residency.check_same_on_all_ranks = compare
        return ends, [len(each) for each in compared[-3:]]

    results = clusters(2).run(encoding)
    assert_as_three_plain_steps([ends for ends, _ in results])
    assert [counts for _, counts in results] == [[6, 0, 0]] * 2  # five units forward, and once all of them backward


class Folding(Block):
    """Looks at its rows as a table."""

    def forward(self, x):
        return super().forward(x.view(len(x), -1, 2).flatten(1))


class Counted(nn.Sequential):
    """Has the operations within it counted, by a mode that lies above that of a checkpoint around it."""

    def forward(self, x):
        with FlopCounterMode(display=False):
            return super().forward(x)


class Selective(Stack):
    """Recomputes two blocks together and one alone, but for the results of some operations, which it keeps."""

    def __init__(self, kept, together):
        super().__init__(3, Folding)
        self.kept, self.together = kept, together

    def forward(self, x):
        matmuls = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]
        keep = {"matmuls": matmuls, "views": [torch.ops.aten.view.default], "all": lambda *_, **__: True}[self.kept]
        contexts = partial(create_selective_checkpoint_contexts, keep)
        x = self.entry(x)
        for blocks in (self.blocks[:2], self.blocks[2:]):
            x = checkpoint(self.together(*blocks), x, use_reentrant=False, context_fn=contexts)
        return self.head(x)


@pytest.mark.parametrize("together", [nn.Sequential, Counted])
@pytest.mark.parametrize("kept", ["matmuls", "views", "all"])
def test_selective_checkpointing_does_not_see_what_an_engine_does(clusters, kept, together):
    def training(engine, _rank):
        for number in range(3):
            step(engine, number)
        return engine.state_dict()

    for options in ({}, {"release_after_forward": False}):
        stages = ["zero3"] if options else STAGES
        results = clusters(2).run(
            on_every_stage, training, stages=stages, model=lambda: selective(kept, together), **options
        )
        assert_as_three_plain_steps(results)


def selective(kept, together):
    """With the parameters of the plain model, whose numbers it computes."""
    torch.manual_seed(0)
    return Selective(kept, together)
