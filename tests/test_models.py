"""The lessons' models have the sizes that are claimed, and what they are fed can be learned."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from zerolab import models


def num_params(name: str) -> int:
    return sum(parameter.numel() for parameter in models.build(name).parameters())


def test_sizes_are_as_claimed() -> None:
    assert num_params("mlp-bench") == 12_598_272
    assert num_params("gpt-tiny") < 1_000_000
    assert 9_500_000 < num_params("gpt-10m") < 11_500_000


def test_the_odd_mlp_needs_padding_on_three_and_four_ranks() -> None:
    linears = [module for module in models.build("mlp-odd").children() if isinstance(module, torch.nn.Linear)]
    sizes = [sum(parameter.numel() for parameter in linear.parameters()) for linear in linears]
    assert sizes == [91, 182, 70]
    assert all(size % 3 and size % 4 for size in sizes)


@pytest.mark.parametrize("name", ["mlp-odd", "gpt-tiny"])
def test_building_twice_gives_the_same_weights_and_leaves_the_random_state(name: str) -> None:
    before = torch.random.get_rng_state()
    first, second, other = models.build(name), models.build(name), models.build(name, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.parametrize("gpu", [0, None])
def test_the_random_state_of_a_gpu_is_the_callers_again_too(gpu: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    states, seen = {0: 5, 1: 6}, []  # of two GPUs; this rank's is the first
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: states.update({gpu: seed}))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: states.update({0: seed, 1: seed}))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({device: state}))

    def made() -> torch.nn.Module:
        seen.append(states[0])
        return torch.nn.Linear(1, 1)

    models.module_of(made)
    models.build("mlp-odd", seed=3)
    assert seen == [5 if gpu is None else 0], "what a function makes on the GPU is the same on every rank"
    assert states == {0: 5, 1: 6}


def test_a_whole_number_of_numpys_is_a_number_of_steps() -> None:
    assert len(list(models.feed("mlp-odd", None, 2, np.int64(3))(2, 0, 3))) == 3


def test_gpt_shares_its_token_embedding_with_its_output_layer() -> None:
    gpt = models.build("gpt-tiny")
    assert isinstance(gpt, models.GPT)
    assert gpt.head.weight is gpt.tokens.weight
    assert isinstance(gpt.blocks, torch.nn.ModuleList)
    assert len(gpt.blocks) == 4


def test_a_position_does_not_see_what_follows_it() -> None:
    gpt = models.build("gpt-tiny")
    tokens = models.batches("gpt-tiny", 1, 0, 1)[0][0]
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % models.VOCABULARY
    assert torch.equal(gpt(tokens)[:, :-1], gpt(changed)[:, :-1])


@pytest.mark.parametrize("name", list(models.RECIPES))
def test_batches_repeat_and_differ_between_ranks_steps_and_seeds(name: str) -> None:
    first, again = models.batches(name, 2, 0, 2), models.batches(name, 2, 0, 2)
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True))
    others = [models.batches(name, 2, 1, 2)[0], first[1], models.batches(name, 2, 0, 2, seed=1)[0]]
    assert all(not torch.equal(first[0][0], inputs) for inputs, _ in others)


def test_targets_are_the_next_bytes_of_the_text() -> None:
    inputs, targets = models.batches("gpt-tiny", 2, 1, 1, rows=3, length=16)[0]
    assert inputs.shape == targets.shape == (3, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert bytes(inputs[0].tolist()) in bytes(models.text().tolist())


def test_a_text_that_was_first_read_without_memory_is_read_again() -> None:
    models._kept_text.clear()
    with FakeTensorMode():
        assert isinstance(models.text(), FakeTensor)
    assert models.text()[:1].tolist() == [ord("I")]


def test_the_text_is_ascii_and_begins_with_the_first_sonnet() -> None:
    assert bytes(models.text()[:45].tolist()) == b"I\n\nFrom fairest creatures we desire increase,"
    assert 8_000 < len(models.text()) < 20_000
    assert int(models.text().max()) < models.VOCABULARY


@pytest.mark.parametrize("name", ["mlp-odd", "gpt-tiny"])
def test_the_loss_falls(name: str) -> None:
    model = models.build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for inputs, targets in models.batches(name, 1, 0, 40):
        loss = models.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("one", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("other", [torch.bfloat16, torch.float32, torch.float64])
def test_squared_errors_are_computed_in_the_finer_of_two_dtypes(one, other):
    outputs = torch.tensor([1.001, 2.002], dtype=one, requires_grad=True)
    targets = torch.tensor([1.0, 2.0], dtype=other)
    loss = models.loss(outputs, targets)
    loss.backward()
    error = outputs.detach().double() - targets.double()
    torch.testing.assert_close(loss.double(), (error**2).mean(), rtol=1e-2, atol=0)
    torch.testing.assert_close(outputs.grad.double(), error, rtol=1e-2, atol=0)


def test_an_unknown_name_or_rank_gets_a_sentence() -> None:
    with pytest.raises(ValueError, match="unknown model 'gpt-5': choose one of mlp-odd, mlp-bench, gpt-tiny, gpt-10m"):
        models.build("gpt-5")
    with pytest.raises(ValueError, match="rank is 2 in a world of 2: it must be 0 to 1"):
        models.batches("mlp-odd", 2, 2, 1)


def test_a_process_that_trains_on_a_device_has_models_and_batches_there(monkeypatch):
    monkeypatch.setattr(models, "_device", torch.device("cpu"))
    models.train_on(torch.device("meta"))  # stands for a GPU
    for name in ("gpt-tiny", "mlp-odd"):
        assert {parameter.device.type for parameter in models.build(name).parameters()} == {"meta"}
        assert {tensor.device.type for batch in models.batches(name, 2, 0, 2) for tensor in batch} == {"meta"}
