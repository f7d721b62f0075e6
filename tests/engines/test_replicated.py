"""Parameters that stay whole on every rank in every stage, with `replicate=`: trained, held and saved rightly."""

import pytest
import torch
from test_any_step import my_rows, on_every_stage, sentence_of
from test_own_backward import alone
from test_unused import OPTIMIZERS, by_engine, differences
from torch import nn
from zoo import MODELS, STAGES, batch, distance, loss_of, make, train_alone, train_on_ranks

from zerolab import compare
from zerolab.engines import ENGINES
from zerolab.engines.partition import partition


def thin(_name, parameter):
    return parameter.dim() < 2


def first_block(name, _parameter):
    return name.startswith("blocks.0")


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_training_clipping_and_accumulating_are_those_of_one_process(clusters, world_size):
    def training(engine, _rank):
        norms = []
        for number in range(3):
            for part in range(2):
                if part == 0:
                    with engine.accumulate():
                        engine.backward(loss_of(engine.model(my_rows(number))) / 2)
                else:
                    (loss_of(engine.model(my_rows(number + 1))) / 2).backward()
            norms.append(float(engine.clip_grad_norm_(0.1)))
            engine.step()
        return norms, engine.state_dict()

    def loss(model, number):
        return (loss_of(model(batch(number))) + loss_of(model(batch(number + 1)))) / 2

    reference = alone([lambda model, number=number: loss(model, number) for number in range(3)], 0.1)
    for replicate in (thin, first_block):
        ranks = clusters(world_size).run(on_every_stage, training, replicate=replicate)
        for ends in ranks:
            assert {stage: far for stage in STAGES if (far := distance(ends[stage][1], reference)) > 1e-6} == {}
            assert all(ends[stage][0] == pytest.approx(ends["ddp"][0], rel=1e-5) for stage in STAGES)
        assert all(distance(ranks[0][stage][1], ranks[-1][stage][1]) == 0 for stage in STAGES)


@pytest.mark.slow
def test_awkward_models_are_trained_as_in_one_process(clusters):
    references = {name: train_alone(name, torch.optim.SGD, 2, parts=1, lr=0.1)[0] for name in MODELS}

    def train():
        far = {}
        for name, reference in references.items():
            ends = train_on_ranks(name, torch.optim.SGD, 2, lr=0.1, replicate=thin)
            far |= {(name, stage): d for stage in STAGES if (d := distance(ends[stage], reference)) > 1e-6}
        return far

    assert clusters(2).run(train) == [{}] * 2


@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}, {"offload": True}, {"overlap": False}])
def test_unused_parameters_and_options_are_as_with_everything_replicated(clusters, options):
    def all_stages():
        keywords = OPTIMIZERS[torch.optim.AdamW]
        theirs = by_engine("ddp", torch.optim.AdamW, keywords, 2, 0.1, **options)
        bound = 2e-6 if "precision" not in options else 2e-2
        return [
            differences(by_engine(stage, torch.optim.AdamW, keywords, 2, 0.1, replicate=thin, **options), theirs, bound)
            for stage in STAGES
        ]

    assert clusters(2).run(all_stages) == [[{}] * 4] * 2


def test_they_are_whole_between_steps_and_each_rank_has_their_gradients_and_state(clusters):
    def held(engine, _rank):
        engine.backward(loss_of(engine.model(my_rows(0))))
        shapes = {name: mean.shape for name, mean in engine.gradients().items()}
        readable = float(engine.model.head.bias.detach().sum())
        engine.step()
        state = {
            name: sum(value.numel() for key, value in engine.optimizer.state[part].items() if key != "step")
            for flat in engine.flats
            for part, name in [(flat.owned, flat.layout.name)]
        }
        return shapes, readable, state

    layouts = {layout.name: layout for layout in partition(make("plain"), 2, replicate=thin)}
    shapes = {name: parameter.shape for name, parameter in make("plain").named_parameters()}
    for ends in clusters(2).run(held_with_adam, held):
        for stage in STAGES:
            found, readable, state = ends[stage]
            assert all(found[name] == shape for name, shape in shapes.items() if len(shape) < 2)
            assert readable == pytest.approx(float(make("plain").head.bias.detach().sum()))
            for name, layout in layouts.items():
                owned = layout.padded if layout.replicated or stage == "ddp" else layout.shard_numel
                assert state[name] == 2 * owned


def held_with_adam(held):
    return {
        stage: held(ENGINES[stage](make("plain"), torch.optim.AdamW, lr=0.1, replicate=thin), 0) for stage in STAGES
    }


def test_zero3_gathers_the_rest_alone_and_reduces_them_by_one_all_reduce(clusters):
    def training():
        model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)))
        engine = ENGINES["zero3"](model, torch.optim.AdamW, lr=1e-3, replicate=lambda name, _: "bias" in name)
        for _ in range(2):
            engine.training_step(torch.ones(4, 8), torch.zeros(4, 8), nn.functional.mse_loss)

    events = [e for e in clusters(2).record(training).ranks[0].events if e.step == 2 and e.kind == "collective"]
    tops = {(e.op, e.unit) for e in events if e.parent is None}
    assert tops == {
        *((op, str(unit)) for unit in range(3) for op in ("all_gather", "reduce_scatter")),
        *(("all_reduce", f"{unit} replicated") for unit in range(3)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_measured_bytes_are_the_formula_and_its_named_terms(precision):
    found = compare(world_size=2, model="mlp-odd", steps=2, precision=precision, options={"replicate": thin})
    for row in found.rows:
        assert sum(row["state"][each] for each in ("parameters", "gradients", "optimizer_state")) == sum(
            row["formula"].values()
        ) + sum(row["terms"].values())
        assert ("replicated" in row["terms"]) == (row["stage"] != "ddp")


def test_a_checkpoint_does_not_depend_on_what_is_replicated(clusters, tmp_path):
    def go_on(stage, path, save, replicate):
        engine = ENGINES[stage](make("plain"), torch.optim.AdamW, lr=0.01, replicate=replicate)
        if not save:
            engine.load(path)
        engine.training_step(my_rows(0 if save else 1), None, lambda outputs, _: loss_of(outputs))
        if save:
            engine.save(path)
        return engine.state_dict()

    for stage in STAGES:
        path = str(tmp_path / stage)
        clusters(2).run(go_on, stage, path, True, thin)
        ends = [clusters(2).run(go_on, stage, path, False, replicate)[0] for replicate in (thin, None, first_block)]
        assert all(distance(end, ends[0]) <= 1e-6 for end in ends)


def test_ranks_that_replicate_different_parameters_are_refused_and_so_is_what_is_no_test(clusters):
    def differing():
        import torch.distributed as dist

        rank = dist.get_rank()
        sentences = [sentence_of(lambda: ENGINES["zero2"](make("plain"), torch.optim.SGD, replicate=["head.bias"]))]
        replicate = (lambda name, _: name == "head.bias") if rank else (lambda name, _: name == "entry.bias")
        sentences.append(sentence_of(lambda: ENGINES["zero2"](make("plain"), torch.optim.SGD, replicate=replicate)))
        return sentences

    for kind, other in clusters(2).run(differing):
        assert "replicate is ['head.bias']: pass a test" in kind
        assert "differ between ranks" in other


def test_a_recording_says_which_flats_are_replicated_explains_their_bytes_and_keeps_it_in_its_file(clusters, tmp_path):
    from zerolab import Recording
    from zerolab.player.owners import owners

    def training():
        engine = ENGINES["zero3"](make("plain"), torch.optim.AdamW, lr=0.1, replicate=thin)
        for number in range(2):
            engine.training_step(my_rows(number), None, lambda outputs, _: loss_of(outputs))

    recording = clusters(2).record(training)
    recording.save(tmp_path / "run.json")
    for each in (recording, Recording.load(tmp_path / "run.json")):
        assert {unit.replicated for unit in each.units} == {False, True}
        assert all(unit.replicated == unit.name.endswith(" replicated") for unit in each.units)
        assert all((owners(each, unit, {}) is None) == unit.replicated for unit in each.units)
        rows = {row["term"]: row for row in each.explain().rows}
        assert rows["replicated"]["bytes"] > 0
        assert rows["state"]["difference"] == 0
