"""What other people's loops do with gradients and parameters, on every stage as in one process; real ranks."""

import pytest
import torch
from test_any_step import my_rows, on_every_stage, plain_steps, sentence_of, step
from torch import nn
from zoo import STAGES, batch, distance, loss_of, make

from zerolab.engines import ENGINES


def test_mean_gradients_can_be_seen_and_changed_in_place_before_the_step(clusters):
    def clamping(engine, _rank):
        refusal = sentence_of(engine.gradients)
        engine.backward(loss_of(engine.model(my_rows(0))))
        seen = {name: mean.clone() for name, mean in engine.gradients().items()}
        for mean in engine.gradients().values():
            mean.clamp_(-1e-3, 1e-3)
        engine.step()
        return refusal, seen, engine.state_dict()

    reference = make("plain")
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    loss_of(reference(batch(0))).backward()
    whole = {name: parameter.grad.clone() for name, parameter in reference.named_parameters()}
    nn.utils.clip_grad_value_(reference.parameters(), 1e-3)
    optimizer.step()
    ranks = clusters(2).run(on_every_stage, clamping)
    for stage in STAGES:
        assert all("no gradients to see: call backward() first" in ends[stage][0] for ends in ranks)
        for name, gradient in whole.items():
            # Ranks own consecutive elements; where all own all, one rank's are enough.
            parts = [ends[stage][1][name] for ends in ranks if name in ends[stage][1]]
            found = parts[0] if stage == "ddp" else torch.cat(parts)
            torch.testing.assert_close(found, gradient if stage == "ddp" else gradient.flatten(), rtol=1e-4, atol=1e-6)
        assert all(distance(ends[stage][2], reference.state_dict()) <= 1e-6 for ends in ranks), stage


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_shards_are_what_the_optimizer_updates_element_for_element_as_the_gradients(clusters, precision):
    def averaging():
        ends = {}
        for stage in STAGES:
            engine = ENGINES[stage](make("plain"), torch.optim.SGD, lr=0.1, precision=precision)
            averages = {name: shard.clone() for name, shard in engine.shards().items()}
            engine.backward(loss_of(engine.model(my_rows(0))))
            alike = {name: mean.shape for name, mean in engine.gradients().items()}
            engine.step()
            assert alike == {name: shard.shape for name, shard in engine.shards().items()}
            for name, shard in engine.shards().items():  # as a loop that averages the weights over steps
                averages[name].lerp_(shard, 0.5)
            assert not any(shard.requires_grad for shard in engine.shards().values())
            whole = {name: value.flatten() for name, value in engine.state_dict().items()}
            ends[stage] = engine.shards(), averages, whole
        return ends

    before = make("plain").state_dict()
    ranks = clusters(2).run(averaging)
    for stage in STAGES:
        whole = ranks[0][stage][2]
        for name, after in whole.items():
            now, averaged = (
                [ends[stage][which][name].flatten() for ends in ranks if name in ends[stage][which]] for which in (0, 1)
            )
            if stage == "ddp":  # every rank owns all
                now, averaged = now[:1], averaged[:1]
            assert torch.equal(torch.cat(now), after), (stage, name)
            assert torch.equal(torch.cat(averaged), before[name].flatten().lerp(after, 0.5)), (stage, name)


def test_what_is_written_into_a_parameter_between_steps_is_in_the_shards(clusters):
    def writing(engine, _rank):
        with engine.full_parameters(), torch.no_grad():
            engine.model.head.bias.fill_(2.0)
        return torch.cat(
            [shard.flatten() for name, shard in engine.shards().items() if name == "head.bias"] or [torch.zeros(0)]
        )

    for stage in STAGES:
        found = [ends[stage] for ends in clusters(2).run(on_every_stage, writing)]
        assert sum(len(each) for each in found) >= len(make("plain").head.bias)
        assert all(bool((each == 2).all()) for each in found), stage


def test_full_parameters_can_be_read_and_what_is_written_stays(clusters):
    def reading(engine, _rank):
        step(engine, 0)
        with engine.full_parameters():
            read = {name: parameter.detach().clone() for name, parameter in engine.model.named_parameters()}
            with torch.no_grad():
                engine.model.head.bias.fill_(2.0)
        state = engine.state_dict()
        written = float(state["head.bias"].min()), float(state["head.bias"].max())
        held = {flat.presence.name for flat in engine.flats}
        step(engine, 1)
        return distance(read, {**state, "head.bias": read["head.bias"]}), written, held, engine.state_dict()

    reference = make("plain")
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for number in range(2):
        loss_of(reference(batch(number))).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 0:
            with torch.no_grad():
                reference.head.bias.fill_(2.0)
    for ends in clusters(2).run(on_every_stage, reading):
        for stage in STAGES:
            far, written, held, state = ends[stage]
            assert (far, written) == (0, (2.0, 2.0)), stage
            assert held == {"RELEASED" if stage == "zero3" else "WHOLE"}
            assert distance(state, reference.state_dict()) <= 1e-6, stage


def tied_and_frozen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 5))
    model[2].weight = model[0].weight
    model[4].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize("groups", [False, True])
def test_zero1_as_an_optimizer_updates_a_list_of_parameters_as_the_whole_optimizer_does(clusters, groups):
    def training(sharded):
        from zerolab.engines.zero1_optimizer import Zero1Optimizer

        model = tied_and_frozen()
        given = model.parameters()
        if groups:
            given = [{"params": model[:4].parameters()}, {"params": model[4:].parameters(), "weight_decay": 0.5}]
        options = {"lr": 0.1, "weight_decay": 0.1}
        make_one = (lambda: Zero1Optimizer(given, torch.optim.AdamW, **options)) if sharded else None
        optimizer = make_one() if sharded else torch.optim.AdamW(given, **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for number in range(6):
            optimizer.zero_grad()
            torch.manual_seed(number)
            out = model[:4](torch.randn(4, 7)) if number == 3 else model(torch.randn(4, 7))  # one step leaves the head
            out.pow(2).sum().backward()
            optimizer.step()
            schedule.step()
        state = optimizer.sharded.state if sharded else optimizer.state
        held = sum(value.numel() for entries in state.values() for value in entries.values() if value.dim())
        return model.state_dict(), held

    whole, ranks = clusters(2).run(training, False)[0], clusters(2).run(training, True)
    for state, held in ranks:
        assert distance(state, whole[0]) <= 1e-6
        assert held <= whole[1] // 2 + 4  # padding


def test_zero1_as_an_optimizer_has_the_settings_that_schedules_ask_for_and_takes_sparse_gradients(clusters):
    def training(sharded):
        from zerolab.engines.zero1_optimizer import Zero1Optimizer

        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 3, sparse=sharded), nn.Linear(3, 2))
        make_one = (lambda *given: Zero1Optimizer(given[0], torch.optim.AdamW)) if sharded else torch.optim.AdamW
        optimizer = make_one(model.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4)
        for number in range(3):
            optimizer.zero_grad()
            model(torch.tensor([number, 2 * number])).square().sum().backward()
            optimizer.step()
            schedule.step()
        return model.state_dict()

    whole = clusters(2).run(training, False)[0]
    assert all(distance(state, whole) <= 1e-6 for state in clusters(2).run(training, True))


def test_accumulating_between_backward_and_step_is_refused_at_once_and_the_gradients_stay(clusters):
    def too_late(engine, _rank):
        engine.backward(loss_of(engine.model(my_rows(0))))

        def accumulate():
            with engine.accumulate():
                pass

        refusal = sentence_of(accumulate)
        engine.step()
        return refusal, engine.state_dict()

    reference = plain_steps(1)
    for ends in clusters(2).run(on_every_stage, too_late):
        for stage in STAGES:
            refusal, state = ends[stage]
            assert "a second backward() before step()" in refusal
            assert distance(state, reference) <= 1e-6, stage
