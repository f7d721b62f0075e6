"""Loops that bring an optimizer of their own: the engine brings the mean gradients, the loop's optimizer updates."""

import pytest
import torch
from test_any_step import my_rows
from test_loops import tied_and_frozen
from torch import nn
from zoo import STAGES, batch, distance, loss_of, make

from zerolab.engines import ENGINES

STEPS = 4


def alone(build, rows, loss):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    for number in range(STEPS):
        optimizer.zero_grad()
        loss(model(rows(number))).backward()
        optimizer.step()
    return model.state_dict()


def rows_of(number):
    return torch.randn(8, 7, generator=torch.Generator().manual_seed(number))


def squares(outputs):
    return outputs.sin().square().mean()


@pytest.mark.parametrize("units", [[], None, ["0", "4"]])
@pytest.mark.parametrize("world_size", [2, 3])
def test_an_optimizer_over_views_of_replicated_parameters_trains_by_the_engines_mean_gradients(
    clusters, world_size, units
):
    """One flat, one for each part, or some: their gradients travel while `loss.backward()` goes on."""

    def training():
        import torch.distributed as dist

        rank, size = dist.get_rank(), dist.get_world_size()
        model = tied_and_frozen()
        if rank:
            nn.init.zeros_(model[0].weight)  # all ranks start from rank 0's
        engine = ENGINES["ddp"](model, torch.optim.SGD, lr=0.0, units=units)
        views = {name: nn.Parameter(parameter.detach()) for name, parameter in model.named_parameters()}
        optimizer = torch.optim.AdamW(views.values(), lr=0.02, weight_decay=0.1)
        for number in range(STEPS):
            optimizer.zero_grad()
            squares(engine.model(rows(number).chunk(size)[rank])).backward()
            for name, mean in engine.gradients().items():
                views[name].grad = mean.clone()
            engine.zero_grad()
            optimizer.step()
        return model.state_dict()

    def rows(number):
        return rows_of(number).repeat(world_size, 1)[: 4 * world_size]

    reference = alone(tied_and_frozen, rows, squares)
    for state in clusters(world_size).run(training):
        assert distance(state, reference) <= 2e-6


@pytest.mark.parametrize("stage", STAGES)
def test_after_a_loops_own_backward_each_gradient_fits_what_the_rank_owns_and_replicated_ones_are_alike(
    clusters, stage
):
    def gradients():
        engine = ENGINES[stage](make("plain"), torch.optim.SGD, lr=0.1, replicate=lambda name, _: "norm" in name)
        loss_of(engine.model(my_rows(0))).backward()
        found = {name: mean.clone() for name, mean in engine.gradients().items()}
        engine.step()
        with engine.full_parameters():
            whole = {name: parameter.detach().clone() for name, parameter in engine.model.named_parameters()}
        return found, whole

    reference = make("plain")
    loss_of(reference(batch(0))).backward()
    ranks = clusters(2).run(gradients)
    for name, parameter in reference.named_parameters():
        parts = [found[name] for found, _ in ranks if name in found]
        if "norm" in name or stage == "ddp":
            assert torch.equal(*parts)
        torch.testing.assert_close(
            parts[0] if parts[0].shape == parameter.shape else torch.cat(parts).view(parameter.shape), parameter.grad
        )
        assert all(part.dtype == parameter.dtype for part in parts)
        updated = parameter.detach() - 0.1 * parameter.grad
        assert all(torch.allclose(whole[name], updated, atol=1e-7) for _, whole in ranks)


@pytest.mark.parametrize("stage", STAGES)
def test_matrices_that_compute_in_half_precision_have_fp32_gradients_and_updates(clusters, stage):
    def build():
        model = make("plain")
        for block in model.blocks:
            block.up.forward = lambda x, up=block.up: nn.functional.linear(
                x.bfloat16(), up.weight.bfloat16(), up.bias.bfloat16()
            ).float()
        return model

    def training():
        engine = ENGINES[stage](build(), torch.optim.AdamW, lr=0.02, weight_decay=0.1)
        for number in range(STEPS):
            loss_of(engine.model(my_rows(number))).backward()
            assert {mean.dtype for mean in engine.gradients().values()} == {torch.float32}
            engine.step()
        return engine.state_dict()

    reference = alone(build, batch, loss_of)
    for state in clusters(2).run(training):
        assert distance(state, reference) <= 5e-3  # halves of a batch are rounded apart
