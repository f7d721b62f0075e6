"""What a user writes into parameters between steps counts, or is refused by name; real ranks, all own stages."""

import inspect

import pytest
import torch
import torch.distributed as dist
from torch import nn
from zoo import STAGES, Stack

from zerolab import RankError
from zerolab.engines import ENGINES, Engine

MASTERS = [{"precision": "bf16"}, {"offload": True}, {"precision": "bf16", "offload": True}, {}]


def write(parameter):
    with torch.no_grad():
        parameter.copy_(torch.full_like(parameter, 0.5))


def write_a_row(parameter):
    with torch.no_grad():
        parameter[0] = 0.5


def clamp_data(parameter):
    parameter.data.clamp_(min=0.5)


def initialise(parameter):
    nn.init.constant_(parameter, 0.5)


WAYS = [write, write_a_row, clamp_data, initialise]


def layer():
    torch.manual_seed(0)
    return nn.Linear(4, 4, bias=False)


def train_with_a_write(stage, way, options):
    """A step of SGD, a write, another step: the weight after each. Gradients are 1 in all places."""
    model = layer()
    engine = ENGINES[stage](model, torch.optim.SGD, lr=2**-4, **options)
    ends = []
    for written in (False, True):
        if written:
            way(model.weight)
            ends.append(engine.state_dict()["weight"])
        engine.training_step(torch.ones(2, 4), None, lambda outputs, _: outputs.sum() / 2)
        ends.append(engine.state_dict()["weight"])
    return ends


def train_all(way):
    return [(stage, o, train_with_a_write(stage, way, o)) for stage in STAGES[:3] for o in MASTERS]


@pytest.mark.parametrize("way", WAYS)
def test_a_write_between_steps_is_taken_over_and_what_was_not_written_keeps_its_digits(clusters, way):
    for runs in clusters(2).run(train_all, way):
        for stage, options, (before, written, after) in runs:
            expected = before.clone()
            way(nn.Parameter(expected))  # in one process, which has no copies
            assert torch.equal(written, expected), (stage, options)
            assert torch.equal(after, expected - 2**-4), (stage, options)


def test_a_state_that_the_module_loads_itself_is_taken_over(clusters):
    def load():
        torch.manual_seed(1)
        other = {name: value.bfloat16().float() for name, value in Stack().state_dict().items()}
        ends = []
        for stage in STAGES[:3]:
            for options in MASTERS:
                engine = ENGINES[stage](Stack(), torch.optim.AdamW, **options)
                engine.model.load_state_dict(other)
                # A master that rounds to what was loaded was not written to, for all that anybody can see.
                found = {name: value.bfloat16().float() for name, value in engine.state_dict().items()}
                ends.append(all(torch.equal(found[name], other[name]) for name in other))
        return ends

    assert clusters(2).run(load) == [[True] * 12] * 2


class Clamped(nn.Module):
    """Writes into its weight whenever it runs."""

    def __init__(self, way):
        super().__init__()
        self.inner, self.way = layer(), way

    def forward(self, x):
        self.way(self.inner.weight)
        return self.inner(x)


@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}, {"release_after_forward": False}])
def test_under_zero3_a_write_while_the_unit_is_whole_stays(clusters, options):
    def train():
        ends = []
        for way in WAYS:
            model = nn.Sequential(Clamped(way), Clamped(way))
            engine = ENGINES["zero3"](model, torch.optim.SGD, lr=2**-4, **options)
            engine.training_step(torch.ones(2, 4), None, lambda outputs, _: 0 * outputs.sum())
            ends.append((way, engine.state_dict()["0.inner.weight"]))
        return ends

    for ends in clusters(2).run(train):
        for way, weight in ends:
            expected = layer().weight
            way(expected)
            assert torch.equal(weight, expected)


OUTSIDE = {
    "copy": lambda model: write(model.blocks[1].up.weight),
    "one element": lambda model: write_a_row(model.blocks[1].up.weight),
    "through data": lambda model: clamp_data(model.blocks[1].up.weight),
    "other data": lambda model: setattr(model.blocks[1].up.weight, "data", torch.ones(12, 6)),
    "initialise": lambda model: initialise(model.blocks[1].up.weight),
    "load": lambda model: model.load_state_dict(Stack().state_dict()),
    "convert": lambda model: model.double(),
    "send": lambda model: dist.broadcast(model.blocks[1].up.weight, src=0),
    "norm": lambda model: model.blocks[1].up.weight.norm(),
    "penalty": lambda model: sum(parameter.abs().sum() for parameter in model.parameters()),
    "single number": lambda model: float(model.head.bias),
    "single number, into a sum": lambda model: model.head.bias + 1,
    "several": lambda model: nn.utils.parameters_to_vector(model.parameters()),
    "list": lambda model: torch.stack([model.blocks[1].up.weight]),
    "numbers": lambda model: model.blocks[1].up.weight.tolist(),
    "state": lambda model: model.state_dict(),
}


def test_under_zero3_a_released_parameter_is_neither_read_nor_written_and_says_its_name(clusters):
    def touch():
        engine = ENGINES["zero3"](Stack(), torch.optim.SGD, lr=0.1)
        before, sentences = engine.state_dict(), {}
        for name, action in OUTSIDE.items():
            try:
                sentences[name] = f"gave {action(engine.model)}"
            except RuntimeError as error:
                sentences[name] = str(error)
        after = engine.state_dict()
        return sentences, all(torch.equal(before[name], after[name]) for name in before)

    for sentences, unchanged in clusters(2).run(touch):
        assert unchanged
        assert {name: sentence for name, sentence in sentences.items() if "is released" not in sentence} == {}
        assert "'blocks.1.up.weight' is released" in sentences["norm"]
        assert "'head.bias' is released" in sentences["single number"]
        assert "engine.state_dict()" in sentences["norm"]


def test_under_zero3_what_needs_no_numbers_can_be_asked_of_a_released_parameter(clusters):
    def ask():
        engine = ENGINES["zero3"](Stack(), torch.optim.SGD, lr=0.1)
        weight = engine.model.blocks[1].up.weight
        weight.requires_grad_(False).requires_grad_(True)
        kinds = weight.dtype, weight.device.type, weight.requires_grad, weight.grad
        count = sum(parameter.numel() for parameter in engine.model.parameters())
        return tuple(weight.shape), isinstance(weight, nn.Parameter), kinds, count, f"{weight!r}", f"{weight}"

    count = sum(parameter.numel() for parameter in Stack().parameters())
    text = "Parameter 'blocks.1.up.weight', released: shape (12, 6), torch.float32"
    expected = (12, 6), True, (torch.float32, "cpu", True, None), count, text, text
    assert clusters(2).run(ask) == [expected] * 2


CHANGES = {
    "a module": lambda model: setattr(model, "head", nn.Linear(6, 1)),
    "a parameter": lambda model: setattr(model.head, "bias", nn.Parameter(torch.ones(1))),
    "data": lambda model: setattr(model.head.weight, "data", torch.ones(1, 6)),
    "data, in a forward": lambda model: model.head.register_forward_pre_hook(
        lambda module, _: setattr(module.weight, "data", torch.ones(1, 6))
    ),
    "dtype": lambda model: model.double(),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_that_was_changed_after_the_engine_was_made_is_refused_before_a_step_is_lost(clusters, stage):
    def change():
        sentences = {}
        for name, make_change in CHANGES.items():
            engine = ENGINES[stage](Stack(), torch.optim.SGD, lr=0.1)
            whole = [flat.owned.clone() for flat in engine.flats]
            try:
                make_change(engine.model)
                rows = torch.ones(2, 6, dtype=torch.float64 if name == "dtype" else torch.float32)
                engine.training_step(rows, None, lambda outputs, _: outputs.sum())
                sentences[name] = "trained"
            except RuntimeError as error:
                sentences[name] = str(error)
            if any(not torch.equal(flat.owned, before) for flat, before in zip(engine.flats, whole, strict=True)):
                sentences[name] += ", and moved"
        return sentences

    for sentences in clusters(2).run(change):
        assert "'head.weight' was not there when the engine was made" in sentences["a module"]
        assert "'head.bias' was not there when the engine was made" in sentences["a parameter"]
        released = {"data", "dtype"} if stage == "zero3" else set()
        for name in ("data", "data, in a forward", "dtype"):
            assert ("is released" if name in released else "has been given other memory") in sentences[name]
        assert not any("moved" in sentence for sentence in sentences.values())


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_rows_that_each_rank_would_rescale_for_itself_are_refused_by_name(clusters, kind):
    def rescale():
        return [_refusal(lambda stage=stage: ENGINES[stage](_table(kind), torch.optim.SGD)) for stage in STAGES]

    for sentences in clusters(2).run(rescale):
        assert all(f"'0' is an {kind.__name__} with max_norm=1.0" in sentence for sentence in sentences)


def _table(kind):
    return nn.Sequential(kind(7, 4, max_norm=1.0), nn.Linear(4, 4))


def _refusal(action):
    with pytest.raises(ValueError, match="rescale") as caught:
        action()
    return str(caught.value)


class Rescaled(nn.Module):
    """Rescales the rows that it is asked for, by torch's function, of which an engine hears nothing."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.full((4, 2), 3.0))

    def forward(self, rows):
        return nn.functional.embedding(rows, self.table, max_norm=1.0)


def test_rows_that_a_forward_rescales_by_its_own_batch_end_elsewhere_than_in_one_process_as_is_said(clusters):
    def rescale():
        rows, ends = torch.tensor([[0], [1]]), []
        for stage in [*STAGES, "torch-ddp"]:
            engine = ENGINES[stage](Rescaled(), torch.optim.SGD, lr=0.0)
            engine.training_step(rows[dist.get_rank()], None, lambda outputs, _: outputs.sum())
            ends.append(engine.state_dict()["table"].norm(dim=1).tolist())
        return ends

    alone = Rescaled()
    alone(torch.tensor([0, 1]))
    short = alone.table.detach().norm(dim=1).tolist()
    assert max(short[:2]) < 1.01 < min(short[2:])
    ends = clusters(2).run(rescale)
    assert all(end != short for rank in ends for end in rank)
    assert "F.embedding(max_norm=)" in inspect.getdoc(Engine)


class Features(nn.Module):
    """Random features that are never trained, between layers that are."""

    def __init__(self):
        super().__init__()
        self.entry, self.head = nn.Linear(6, 6), nn.Linear(6, 1)
        self.register_buffer("features", torch.randn(6, 6), persistent=False)
        self.register_buffer("mask", torch.rand(6) > 0.5)
        self.register_buffer("one", torch.ones(()).expand(3, 3))

    def forward(self, x):
        return self.head((self.entry(x) @ self.features).sin() * self.mask)


def test_ranks_start_from_rank_0s_buffers(clusters):
    def train():
        ends = []
        for stage in (*STAGES, "fsdp2"):
            torch.manual_seed(dist.get_rank())
            engine = ENGINES[stage](Features(), torch.optim.SGD, lr=0.1)
            ends.append([buffer.clone() for buffer in engine.model.buffers()])
        return ends

    torch.manual_seed(0)
    expected = list(Features().buffers())
    for ends in clusters(2).run(train):
        assert all(torch.equal(mine, its) for found in ends for mine, its in zip(found, expected, strict=True))


def test_a_penalty_that_reads_parameters_outside_of_their_unit_is_refused_by_zero3_by_name(clusters):
    def penalise():
        engine = ENGINES["zero3"](Stack(), torch.optim.SGD, lr=0.1)
        outputs = engine.model(torch.ones(2, 6))
        engine.backward(outputs.sum() + sum(block.up.weight.abs().sum() for block in engine.model.blocks))

    with pytest.raises(RankError, match=r"'blocks.0.up.weight' is released, so abs has no numbers"):
        clusters(2).run(penalise)


class Waves(nn.Module):
    """Complex and real weights, in single and double precision."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.waves = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
        self.wide = nn.Parameter(torch.randn(4, dtype=torch.float64))
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return (
            self.inner(x).float() @ self.waves.real + (x.to(self.waves.dtype) @ self.waves).imag * self.wide
        ).square()


def train_waves(options):
    """The complex weight after a step, and the norm of all gradients, on each stage."""
    ends = []
    for stage in STAGES:
        engine = ENGINES[stage](Waves(), torch.optim.SGD, lr=0.1, **options)
        engine.backward(engine.model(torch.ones(2, 4)).mean())
        norm = engine.clip_grad_norm_(1e6)
        engine.step()
        ends.append((engine.state_dict()["waves"], norm))
    return ends


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({}, 1e-5),
        ({"reduce_dtype": torch.float32}, 1e-5),
        ({"precision": "bf16"}, 0.05),
        ({"precision": "bf16", "reduce_dtype": torch.float64}, 0.05),
    ],
)
def test_complex_weights_are_trained_in_both_parts_and_their_norm_counts_both(clusters, options, bound):
    model = Waves()
    model(torch.ones(2, 4)).mean().backward()
    norm = torch.stack([p.grad.abs().double().square().sum() for p in model.parameters()]).sum().sqrt()
    expected = model.waves.detach() - 0.1 * model.waves.grad
    for ends in clusters(2).run(train_waves, options):
        for waves, measured in ends:
            assert (waves - expected).abs().max() <= bound * expected.abs().max()
            assert measured.item() == pytest.approx(norm.item(), rel=bound)
