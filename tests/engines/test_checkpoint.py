"""Checkpoints: whole, independent of the number of ranks, atomic, and readable without executing anything."""

import copy
import os

import pytest
import torch
from awkward import batch, distance, loss_fn, make, shard_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from zerolab import RankError, theory
from zerolab.engines import ENGINES
from zerolab.engines.partition import partition
from zerolab.theory import STAGES


def train(stage, steps, path=None, resume=None, optimizer_cls=torch.optim.AdamW):
    """Trains over the given steps, from `resume`, and saves to `path`; returns the losses and the weights."""
    import torch.distributed as dist

    engine = ENGINES[stage](make(frozen=("blocks.1",)), optimizer_cls, lr=0.01)
    if resume:
        engine.load(resume)
    losses = []
    for step in steps:
        tokens, targets = (shard_of(tensor, dist.get_rank(), dist.get_world_size()) for tensor in batch(step))
        loss = engine.training_step(tokens, targets, loss_fn)
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    if path:
        engine.save(path)
    return losses, engine.state_dict()


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_saved_on_4_ranks_goes_on_on_2_and_on_1_as_if_nothing_had_happened(clusters, tmp_path, stage):
    path = str(tmp_path / "run.safetensors")
    losses, weights = clusters(4).run(train, stage, range(4))[0]
    clusters(4).run(train, stage, range(2), path=path)
    for world_size in (2, 1):
        resumed, state = clusters(world_size).run(train, stage, range(2, 4), resume=path)[0]
        assert resumed == pytest.approx(losses[2:], abs=1e-6)
        assert distance(state, weights) <= 1e-5


def test_the_optimizers_state_is_whole_and_by_parameter_name(clusters):
    def names_and_shapes():
        engine = ENGINES["zero3"](make(), torch.optim.AdamW, lr=0.01)
        engine.training_step(*batch(0), loss_fn)
        return {
            name: entry and entry["exp_avg"].shape for name, entry in engine.optimizer_state_dict()["state"].items()
        }

    shapes = {name: parameter.shape for name, parameter in make().named_parameters()} | {"unused": {}}
    assert clusters(3).run(names_and_shapes) == [shapes] * 3


class Scaled(torch.nn.Module):
    """A single number, first in its flat, that is trained with a matrix."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, inputs):
        return self.layer(inputs) * self.scale


@pytest.mark.parametrize("stage", STAGES)
def test_a_parameter_that_is_a_single_number_keeps_the_moments_of_its_flat_whole(clusters, stage):
    def saved_and_loaded():
        torch.manual_seed(0)
        model = Scaled()
        steps = [(torch.ones(2, 3) * number, torch.zeros(2, 2), torch.nn.functional.mse_loss) for number in (1, 2)]
        engine, other = (ENGINES[stage](copy.deepcopy(model), torch.optim.AdamW, lr=0.1) for _ in range(2))
        engine.training_step(*steps[0])
        other.load_state_dict(engine.state_dict())
        other.load_optimizer_state_dict(engine.optimizer_state_dict())
        for each in (engine, other):
            each.training_step(*steps[1])
        return distance(engine.state_dict(), other.state_dict())

    assert clusters(2).run(saved_and_loaded) == [0, 0]


def test_the_same_file_serves_every_stage(clusters, tmp_path):
    path = str(tmp_path / "run.safetensors")
    _, saved = clusters(2).run(train, "zero1", range(2), path=path)[0]
    for stage in STAGES:
        _, loaded = clusters(2).run(train, stage, [], resume=path)[0]
        assert distance(loaded, saved) == 0


def test_what_someone_has_added_to_a_file_is_passed_over(clusters, tmp_path):
    path, longer = tmp_path / "run.safetensors", tmp_path / "longer.safetensors"
    _, saved = clusters(1).run(train, "zero1", range(1), path=str(path))[0]
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    added = {"ema/weight": torch.ones(2), "note": torch.ones(1)}
    save_file(load_file(path) | added, longer, metadata)
    _, loaded = clusters(1).run(train, "zero1", [], resume=str(longer))[0]
    assert distance(loaded, saved) == 0


def test_a_save_that_is_killed_leaves_the_old_file_as_it_was(clusters, tmp_path):
    path = tmp_path / "run.safetensors"
    clusters(1).run(train, "zero1", range(1), path=str(path))
    before = path.read_bytes()

    def killed_while_saving():
        from zerolab.engines import checkpoint

        checkpoint.Path.replace = lambda *_: os._exit(1)
        train("zero1", range(2), path=str(path))

    with pytest.raises(RankError):
        clusters(1).run(killed_while_saving)
    assert path.read_bytes() == before
    assert clusters(1).run(train, "zero1", [], resume=str(path))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_a_file_that_is_no_checkpoint_is_refused(clusters, tmp_path, content):
    path = tmp_path / "run.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RankError, match=r"run\.safetensors cannot be read as a checkpoint"):
        clusters(1).run(train, "zero1", [], resume=str(path))


def test_a_checkpoint_of_other_trained_parameters_is_refused(clusters):
    def load_other():
        frozen = ENGINES["zero2"](make(frozen=("norm",)), torch.optim.AdamW)
        whole = ENGINES["zero2"](make(), torch.optim.AdamW)
        whole.load_optimizer_state_dict(frozen.optimizer_state_dict())

    with pytest.raises(RankError, match=r"'norm\.bias' is trained in only one of engine and state"):
        clusters(1).run(load_other)


@pytest.mark.parametrize("place", ["no/such/folder/run", "full", "crowded"])
def test_a_save_that_one_rank_cannot_write_fails_on_all_and_the_training_goes_on(clusters, tmp_path, place):
    def going_on():
        from zerolab.engines import checkpoint

        def fails(*_):
            raise OSError(28, "No space left on device", "run") if place == "full" else MemoryError

        checkpoint.save_file, kept = checkpoint.save_file if "/" in place else fails, checkpoint.save_file
        engine = ENGINES["zero3"](make(), torch.optim.AdamW, lr=0.01)
        try:
            with pytest.raises(ValueError) as caught:
                engine.save(tmp_path / place)
        finally:
            checkpoint.save_file = kept
        engine.training_step(*batch(0), loss_fn)
        engine.save(tmp_path / "run")
        return str(caught.value), (tmp_path / "run").exists()

    sentences = {"full": "No space left on device", "crowded": "MemoryError"}  # which Python gives without a word
    for said, exists in clusters(2).run(going_on):
        assert sentences.get(place, "its folder does not exist") in said
        assert exists


@pytest.mark.parametrize("stage", ["zero1", "fsdp2"])
def test_a_learning_rate_that_is_a_tensor_is_saved_and_stays_one(clusters, tmp_path, stage):
    def resumed():
        engine, other = (ENGINES[stage](make(), torch.optim.AdamW, lr=torch.tensor(lr)) for lr in (0.25, 0.5))
        torch.optim.lr_scheduler.StepLR(engine.optimizer, 1)  # notes the first rate beside it
        engine.training_step(*batch(0), loss_fn)
        engine.save(tmp_path / "run")
        other.load(tmp_path / "run")
        return [other.optimizer.param_groups[0][name] for name in ("lr", "initial_lr")]

    for lr, initial in clusters(2).run(resumed):
        assert isinstance(lr, torch.Tensor)
        assert lr == initial == 0.25


@pytest.mark.parametrize("stage", ["ddp", "zero2"])
def test_after_a_load_measured_state_is_the_formulas_and_its_terms_also_of_what_no_step_uses_any_more(clusters, stage):
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(9, 7, bias=False), torch.nn.Linear(5, 8, bias=False)

        def forward(self, inputs, both):
            return self.first(inputs).sum() + (self.second(inputs[:, :5]).sum() if both else 0)

    def resumed(state):
        engine = ENGINES[stage](Branches(), torch.optim.AdamW, lr=0.01)
        if state:
            engine.load_optimizer_state_dict(state)
        for _ in range(2):
            engine.backward(engine.model(torch.ones(2, 9), both=not state))
            engine.step()
        return engine.optimizer_state_dict()

    recording = clusters(2).record(resumed, clusters(2).run(resumed, None)[0])
    for rank in recording.ranks:
        terms = theory.terms(stage, partition(Branches(), 2), 2, **rank.info.for_terms)
        assert sum(rank.state.values()) == sum(rank.info.formula.values()) + sum(terms.values())


def test_a_dtype_that_the_files_format_does_not_have_is_refused_in_a_sentence(clusters, tmp_path):
    def save():
        model = torch.nn.Linear(4, 4)
        model.register_buffer("wide", torch.ones(2, dtype=torch.complex128))
        engine = ENGINES["zero1"](model, torch.optim.AdamW, lr=0.01)
        with pytest.raises(ValueError) as caught:
            engine.save(tmp_path / "run")
        engine.save_sharded(tmp_path, 1)
        return str(caught.value)

    said = "a safetensors file takes no torch.complex128: use save_sharded"
    assert clusters(2).run(save) == [said] * 2


@pytest.mark.parametrize("part", ["number", "text"])
def test_a_file_in_which_one_bit_is_off_is_refused_before_anything_is_loaded(clusters, tmp_path, part):
    path, off = tmp_path / "run.safetensors", tmp_path / "off.safetensors"
    clusters(1).run(train, "zero1", range(1), path=str(path))
    whole = path.read_bytes()
    place = len(whole) - 1 if part == "number" else whole.index(b"0.999") + 4
    off.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])

    def refusal():
        engine = ENGINES["zero2"](make(frozen=("blocks.1",)), torch.optim.AdamW, lr=0.01)
        before = engine.state_dict()
        with pytest.raises(ValueError) as caught:
            engine.load(off)
        return str(caught.value), distance(engine.state_dict(), before)

    (said, moved), *_ = clusters(2).run(refusal)
    assert " in off.safetensors is damaged: copy it again, or load an earlier checkpoint" in said
    assert moved == 0


def test_a_file_from_before_there_were_sums_loads(clusters, tmp_path):
    path, older = tmp_path / "run.safetensors", tmp_path / "older.safetensors"
    _, saved = clusters(1).run(train, "zero1", range(1), path=str(path))[0]
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    del metadata["sums"]
    save_file(load_file(path), older, metadata)
    _, loaded = clusters(1).run(train, "zero1", [], resume=str(older))[0]
    assert distance(loaded, saved) == 0


def test_sums_that_are_no_sums_are_damage(clusters, tmp_path):
    path, off = tmp_path / "run.safetensors", tmp_path / "off.safetensors"
    clusters(1).run(train, "zero1", range(1), path=str(path))
    with safe_open(path, "pt") as file:
        save_file(load_file(path), off, file.metadata() | {"sums": "[1]"})
    with pytest.raises(RankError, match=r"'sums' in off\.safetensors is damaged"):
        clusters(1).run(train, "zero1", [], resume=str(off))


def test_the_state_of_a_torch_optimizer_which_numbers_its_parameters_is_refused_in_a_sentence(clusters):
    def load_numbered():
        model = make()
        engine = ENGINES["zero2"](make(), torch.optim.AdamW, lr=0.01)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loss_fn(model(batch(0)[0]), batch(0)[1]).backward()
        optimizer.step()
        engine.load_optimizer_state_dict(optimizer.state_dict())

    with pytest.raises(RankError, match=r"the state numbers its parameters.*engine\.optimizer_state_dict\(\)"):
        clusters(1).run(load_numbered)


@pytest.mark.parametrize(
    ("stage", "file"), [*((stage, file) for stage in STAGES for file in ("whole", "sharded")), ("fsdp2", "whole")]
)
def test_the_state_of_a_model_in_another_dtype_is_cast_with_the_model(clusters, tmp_path, stage, file):
    def saved_and_loaded(before, after, optimizer_cls, folder):
        options = {"momentum": 0.9} if optimizer_cls is torch.optim.SGD else {}
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
        step = torch.ones(2, 3), torch.zeros(2, 2), torch.nn.functional.mse_loss
        first, second = (
            ENGINES[stage](copy.deepcopy(model).to(dtype), optimizer_cls, lr=0.1, **options)
            for dtype in (before, after)
        )
        first.training_step(step[0].to(before), step[1].to(before), step[2])
        if file == "whole":
            first.save(f"{folder}/file")
            second.load(f"{folder}/file")
        else:
            first.save_sharded(folder, 1)
            second.load_sharded(f"{folder}/step-1")
        # What torch makes of the same.
        alone = copy.deepcopy(model).to(after)
        alone.load_state_dict(first.state_dict())
        optimizer = optimizer_cls(alone.parameters(), lr=0.1, **options)
        names = [name for name, _ in alone.named_parameters()]
        state = first.optimizer_state_dict()["state"]
        numbered = {number: state[name] for number, name in enumerate(names)}
        optimizer.load_state_dict({"state": numbered, "param_groups": optimizer.state_dict()["param_groups"]})
        step[2](alone(step[0].to(after)), step[1].to(after)).backward()
        optimizer.step()
        second.training_step(step[0].to(after), step[1].to(after), step[2])
        kept = second.optimizer_state_dict()["state"]
        dtypes = {value.dtype for entry in kept.values() for key, value in entry.items() if key != "step"}
        return dtypes, distance(second.state_dict(), alone.state_dict())

    for optimizer_cls in (torch.optim.SGD, torch.optim.AdamW):
        for before, after in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
            folder = tmp_path / f"{optimizer_cls.__name__}-{after}"
            folder.mkdir()
            for dtypes, apart in clusters(2).run(saved_and_loaded, before, after, optimizer_cls, str(folder)):
                assert dtypes == {after}
                assert apart <= (1e-6 if after is torch.float32 else 1e-2)
