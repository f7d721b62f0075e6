"""Parameters without a gradient are left alone as torch DDP leaves them: weights, optimizer state, counts of steps."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zerolab.engines import ENGINES
from zerolab.theory import STAGES

WIDTH, STEPS = 5, 4
OPTIMIZERS = {
    torch.optim.AdamW: {"lr": 0.02, "weight_decay": 0.3},
    torch.optim.SGD: {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2},
    torch.optim.Adagrad: {"lr": 0.1, "weight_decay": 0.1},
    torch.optim.NAdam: {"lr": 0.02, "weight_decay": 0.1},
}


class Block(nn.Module):
    """Uses its `extra` only when told to, and its `never` not at all."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.never, self.extra = nn.Parameter(torch.randn(7)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x, uses_extra):
        x = x + self.outer(torch.tanh(self.inner(x)))
        return x * self.extra if uses_extra else x


class Choosing(nn.Module):
    """Its second block rests in every other step, its third one always."""

    def __init__(self):
        super().__init__()
        self.entry, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.tensor(1.5))
        self.idle = nn.Parameter(torch.randn(3, 2))
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x, step, rank):
        uses_extra = rank in EXTRA_ON[step]
        x = self.blocks[0](self.entry(x), uses_extra)
        if step % 2 == 0:
            x = self.blocks[1](x, uses_extra)
        return x * self.scale if step else x


EXTRA_ON = [{0, 1, 2, 3}, {0}, set(), {1, 3}]  # the ranks that use it, step by step


def make():
    torch.manual_seed(0)
    return Choosing()


def rows(step, rank):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))


def loss_of(model, step, rank):
    return model(rows(step, rank), step, rank).square().mean()


def by_torch(optimizer_cls, keywords, micro_batches=1, max_norm=None):
    """What torch DDP ends with: parameters and optimizer state, by name."""
    import torch.distributed as dist

    model, rank = make(), dist.get_rank()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = optimizer_cls(model.parameters(), **keywords)
    for step in range(0, STEPS, micro_batches):
        for micro in range(micro_batches - 1):
            with wrapped.no_sync():
                loss_of(wrapped, step + micro, rank).backward()
        loss_of(wrapped, step + micro_batches - 1, rank).backward()
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    state = {name: optimizer.state.get(parameter, {}) for name, parameter in model.named_parameters()}
    return model.state_dict(), state


def by_engine(stage, optimizer_cls, keywords, micro_batches=1, max_norm=None, **options):
    import torch.distributed as dist

    engine, rank = ENGINES[stage](make(), optimizer_cls, **keywords, **options), dist.get_rank()
    for step in range(0, STEPS, micro_batches):
        for micro in range(micro_batches - 1):
            with engine.accumulate():
                engine.backward(loss_of(engine.model, step + micro, rank))
        engine.backward(loss_of(engine.model, step + micro_batches - 1, rank))
        if max_norm:
            engine.clip_grad_norm_(max_norm)
        engine.step()
    return engine.state_dict(), engine.optimizer_state_dict()["state"]


def differences(ours, theirs, bound=2e-6):
    """What of parameters and optimizer state is not the same, by name."""
    (weights, state), (their_weights, their_state) = ours, theirs
    far = {name: float((weights[name] - their_weights[name]).abs().max()) for name in their_weights}
    found = {name: distance for name, distance in far.items() if not distance <= bound}
    for name, entries in their_state.items():
        if entries.keys() != state[name].keys():
            found[f"keys of {name}"] = sorted(state[name])
        for key in entries.keys() & state[name].keys():
            one, other = (torch.as_tensor(of[key]).float() for of in (state[name], entries))
            if not torch.allclose(one, other, rtol=1e-4, atol=bound):
                found[f"{key} of {name}"] = float((one - other).abs().max())
    return found


def compare_all(cases):
    found = {}
    for optimizer_cls, keywords, options in cases:
        shared = {key: value for key, value in options.items() if key in ("micro_batches", "max_norm")}
        theirs = by_torch(optimizer_cls, keywords, **shared)
        for stage in STAGES:
            if wrong := differences(by_engine(stage, optimizer_cls, keywords, **options), theirs):
                found[stage, optimizer_cls.__name__, str(options)] = wrong
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_what_no_rank_has_a_gradient_for_is_left_alone_as_torch_ddp_leaves_it(clusters, world_size):
    adamw = OPTIMIZERS[torch.optim.AdamW]
    cases = [(torch.optim.AdamW, adamw, {}), (torch.optim.AdamW, adamw, {"micro_batches": 2, "max_norm": 0.1})]
    if world_size == 2:
        cases += [(optimizer_cls, keywords, {}) for optimizer_cls, keywords in OPTIMIZERS.items()]
        cases += [(torch.optim.AdamW, adamw, {"offload": True}), (torch.optim.AdamW, adamw, {"overlap": False})]
    assert clusters(world_size).run(compare_all, cases) == [{}] * world_size


def left_over(stage, **options):
    """Of a training in bf16: what has become of parameters that were never used, or used in every other step."""
    import torch.distributed as dist

    engine, rank = ENGINES[stage](make(), torch.optim.AdamW, lr=0.1, weight_decay=0.5, **options), dist.get_rank()
    start = engine.state_dict()
    for step in range(STEPS):
        engine.backward(loss_of(engine.model, step, rank))
        engine.step()
    end, state = engine.state_dict(), engine.optimizer_state_dict()["state"]
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    return moved, {name: float(entries["step"]) for name, entries in state.items() if entries}


@pytest.mark.parametrize("world_size", [2])
def test_in_bf16_the_masters_of_unused_parameters_stay_and_steps_are_counted_by_parameter(clusters, world_size):
    cases = [(stage, options) for stage in STAGES for options in ({}, {"offload": True})]

    def every_case():
        return [left_over(stage, precision="bf16", **options) for stage, options in cases]

    used = {name for name, _ in make().named_parameters() if "never" not in name and "blocks.2" not in name} - {"idle"}
    for results in clusters(world_size).run(every_case):
        for moved, steps in results:
            assert moved == steps.keys() == used
            assert (steps["entry.weight"], steps["blocks.1.inner.bias"], steps["blocks.0.extra"]) == (4, 2, 3)


class Half(nn.Module):
    """Never uses the second half of its parameters: all that the second of two ranks owns."""

    def __init__(self):
        super().__init__()
        self.used, self.never = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * self.used


@pytest.mark.parametrize("options", [{}, {"offload": True}])
def test_a_scaled_norm_has_one_precision_on_all_ranks_also_where_one_owns_nothing_that_was_used(clusters, options):
    def norms():
        found = {}
        for stage in STAGES:
            engine = ENGINES[stage](
                Half(), torch.optim.SGD, precision="fp16", reduce_dtype=torch.float64, lr=0.1, **options
            )
            engine.backward(engine.scaler.scale(engine.model(torch.ones(2, 8)).float().mean()))
            engine.scaler.unscale_(engine.optimizer)
            found[stage] = engine.clip_grad_norm_(1.0)
            engine.scaler.step(engine.optimizer)
            engine.scaler.update()
            assert torch.equal(engine.state_dict()["never"], torch.ones(8))
        return found

    expected = torch.tensor(8**0.5 / 8)
    for found in clusters(2).run(norms):
        for norm in found.values():
            torch.testing.assert_close(norm, expected)


def save_and_go_on(stage, path, steps, save):
    import torch.distributed as dist

    engine, rank = ENGINES[stage](make(), torch.optim.AdamW, lr=0.02, weight_decay=0.3), dist.get_rank()
    if not save:
        engine.load(path)
    for step in steps:
        engine.backward(loss_of(engine.model, step, rank % 2))
        engine.step()
    if save:
        engine.save(path)
    return engine.state_dict(), engine.optimizer_state_dict()["state"]


def test_a_checkpoint_keeps_each_parameters_own_count_of_steps_on_any_number_of_ranks(clusters, tmp_path):
    whole = clusters(2).run(save_and_go_on, "zero2", str(tmp_path / "whole"), range(STEPS), True)[0]
    for index, stage in enumerate(STAGES):
        path = str(tmp_path / stage)
        clusters(2).run(save_and_go_on, stage, path, range(2), True)
        other = STAGES[(index + 2) % 4]
        assert [
            differences(end, whole) for end in clusters(4).run(save_and_go_on, other, path, range(2, 4), False)
        ] == [{}] * 4
