"""What a loop trains is told by what it does, not by what its parameters would allow; what is held, by its owner."""

import copy
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

import zerolab
from zerolab import models
from zerolab.engines import ENGINES
from zerolab.recording.recorder import Recorder
from zerolab.recording.recording import Recording


def net():
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def train(model, optimizer, steps=3):
    for _ in range(steps):
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def described(rank):
    """Of each flat its elements, and whether it is frozen."""
    return {unit.name: (unit.numel, unit.frozen) for unit in rank.units}


def differences(rank):
    return {row["term"]: row.get("difference") for row in Recording.merge([rank]).explain().rows}


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_adapters_that_are_added_after_a_first_forward_are_counted_and_what_they_adapt_is_frozen(record):
    def adapt():
        model = net()
        model(torch.ones(4, 8))
        model.requires_grad_(False)
        model[0] = Adapted(model[0])
        train(model, torch.optim.AdamW([each for each in model.parameters() if each.requires_grad]))

    rank = record(adapt)
    assert described(rank) == {"0": (72, True), "2": (72, True), "0 added": (32, False)}
    assert rank.info.num_params == 176
    assert differences(rank)["state"] == 0
    held = {(event.unit, event.category) for event in rank.events if event.op == "hold"}
    assert {("0 added", category) for category in ("parameters", "gradients", "optimizer_state")} <= held


def test_an_average_of_a_models_weights_is_not_trained_though_it_would_take_gradients(cluster):
    def average():
        model = DistributedDataParallel(net())
        mean, optimizer = copy.deepcopy(model.module), torch.optim.AdamW(model.parameters())
        for _ in range(3):
            train(model, optimizer, steps=1)
            with torch.no_grad():
                mean(torch.ones(4, 8))

    recording = cluster.record(average)
    frozen = {unit.name: unit.frozen for unit in recording.units}
    assert frozen == {"0": False, "2": False, "Sequential.0": True, "Sequential.2": True}
    explained = recording.explain()
    assert "nearest to ddp" in explained.title
    assert [row["difference"] for row in explained.rows] == [0] * 5


def test_layers_that_are_trained_from_a_later_step_on_are_trained(record):
    def thaw():
        model = net()
        model[0].requires_grad_(False)
        optimizer = torch.optim.AdamW(model[2].parameters())
        train(model, optimizer)
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(model[0].parameters())})
        train(model, optimizer)

    rank = record(thaw)
    assert described(rank) == {"0 frozen": (72, False), "2": (72, False)}
    assert differences(rank)["state"] == 0


def test_what_an_optimizer_with_copies_of_its_own_trains_is_not_called_frozen(record):
    """As DeepSpeed's: its gradients are gone by the update, and its state belongs to tensors that no model has."""

    def update_copies():
        model = net()
        copies = [each.detach().clone() for each in model.parameters()]
        optimizer = torch.optim.AdamW(copies)
        for _ in range(2):
            gradients = torch.autograd.grad(model(torch.ones(4, 8)).square().mean(), list(model.parameters()))
            for mine, gradient in zip(copies, gradients, strict=True):
                mine.grad = gradient
            optimizer.step()
            with torch.no_grad():
                for mine, each in zip(copies, model.parameters(), strict=True):
                    each.copy_(mine)

    assert described(record(update_copies)) == {"0": (72, False), "2": (72, False)}


def test_the_weights_of_an_inner_loop_are_not_a_second_model(record):
    def learn_to_learn():
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            own = dict(model.named_parameters())
            loss = functional_call(model, own, (torch.ones(4, 8),)).square().mean()
            gradients = torch.autograd.grad(loss, list(own.values()), create_graph=True)
            fast = {name: each - 0.1 * gradient for (name, each), gradient in zip(own.items(), gradients, strict=True)}
            functional_call(model, fast, (torch.ones(4, 8),)).square().mean().backward()
            optimizer.step()

    rank = record(learn_to_learn)
    assert rank.info.state == {"parameters": 576, "gradients": 576, "optimizer_state": 1152 + 16}
    spans = [event.spans for event in rank.events if (event.op, event.category) == ("hold", "parameters")]
    assert spans == [((0, 72),)] * 2


def test_a_model_that_another_thread_calls_meanwhile_has_no_part_in_the_steps(record):
    model, other, go, done = net(), net(), threading.Event(), threading.Event()

    def call():
        go.wait()
        other(torch.ones(4, 8))
        train(other, torch.optim.SGD(other.parameters(), lr=0.1), steps=1)
        done.set()

    class Meeting(nn.Module):
        def forward(self, x):
            go.set()
            done.wait()
            return x

    def meet():
        model.insert(1, Meeting())
        thread = threading.Thread(target=call)
        thread.start()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
        thread.join()

    rank = record(meet)
    assert (rank.info.steps, rank.info.num_params) == (2, 144)
    forwards = [(event.step, event.unit) for event in rank.events if event.op == "forward"]
    assert forwards == [(step, unit) for step in (1, 2) for unit in ("root", "0", "3")]
    assert [event.step for event in rank.events if event.kind == "optimizer"] == [1, 2]


def test_lists_in_an_optimizers_state_are_its_state(record):
    def optimize():
        model = nn.Linear(8, 8)
        kept.append(torch.optim.LBFGS(model.parameters(), history_size=3, max_iter=4))

        def closure():
            kept[0].zero_grad()
            loss = (model(torch.eye(8)) - torch.arange(8)).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            sizes.append(sum(held.nbytes for state in kept[0].state.values() for held in tensors(state)))
            kept[0].step(closure)

    def tensors(state):
        values = [each for value in state.values() for each in (value if isinstance(value, list) else [value])]
        return [each for each in values if isinstance(each, torch.Tensor)]

    kept, sizes = [], []
    assert record(optimize).info.state["optimizer_state"] == sizes[-1] > 6 * 288


def test_two_kinds_of_optimizers_in_one_step_are_both_named_and_not_taken_for_a_shard(cluster):
    def update_both():
        model = DistributedDataParallel(net())
        matrices, rest = ([each for each in model.parameters() if (each.ndim == 2) is wide] for wide in (True, False))
        optimizers = torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(rest)
        for _ in range(3):
            model(torch.ones(4, 8)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()

    recording = cluster.record(update_both)
    assert recording.info.optimizer == "Muon+AdamW"
    assert "nearest to ddp" in recording.explain().title


def pipe(*, names):
    """Each rank has a part of its own, of another size, under a name of its own or not."""
    part = nn.Module()
    part.add_module(f"part{dist.get_rank() * names}", nn.Linear(8, 8 - 4 * dist.get_rank()))
    part.forward = next(part.children()).forward
    optimizer = torch.optim.AdamW(part.parameters())
    for _ in range(2):
        x = torch.ones(4, 8, requires_grad=True)
        if dist.get_rank():
            dist.recv(x.data, 0)
            part(x).sum().backward()
        else:
            y = part(x)
            dist.send(y.detach(), 1)
            y.sum().backward()
        optimizer.step()


def test_each_rank_of_a_pipeline_is_explained_by_the_part_that_it_has(cluster):
    recording = cluster.record(pipe, names=True)
    for rank in (0, 1):
        explained = recording.explain(rank)
        assert "nearest to ddp" in explained.title
        assert [row["difference"] for row in explained.rows] == [0] * 5


def test_a_rank_whose_names_mean_other_parameters_than_the_first_ones_is_not_explained_by_those(cluster):
    recording = cluster.record(pipe, names=False)
    assert {row["difference"] for row in recording.explain(0).rows} == {0}
    with pytest.raises(ValueError, match="rank 1 trains a model of its own, of 36 parameters, under names that mean"):
        recording.explain(1)


def test_what_ddp_sends_while_it_is_made_does_not_stay(cluster):
    def live():
        with Recorder() as recorder:
            model = DistributedDataParallel(nn.Linear(8, 8))
            dist.all_reduce(model.module.bias.data)  # of what was sent last the handle is kept, until more is sent
            found = sum(recorder.live().values())
        return found, sum(each.nbytes for each in model.parameters())

    for found, parameters in cluster.run(live):
        assert found == 2 * parameters, "them and a bucket for their gradients"


def train_with(*, own):
    class Mine(ENGINES["ddp"]):
        def reduce(self, flat, gradient):
            return dist.all_reduce(gradient, async_op=True) if own else super().reduce(flat, gradient)

    engine = Mine(models.build("mlp-odd"), torch.optim.AdamW, lr=1e-3)
    for inputs, targets in models.batches("mlp-odd", 2, dist.get_rank(), 2):
        engine.training_step(inputs, targets, models.loss)


def test_gradients_that_an_engine_of_ones_own_sends_by_torchs_collectives_are_gradients_of_their_units(cluster):
    seen = []
    for own in (False, True):
        events = [event for event in cluster.record(train_with, own=own).ranks[0].events if event.parent is None]
        sent = [
            (e.unit, e.live["gradients"], e.live["activations"]) for e in events if (e.op, e.step) == ("all_reduce", 2)
        ]
        held = [(event.unit, event.category, event.spans) for event in events if event.op == "hold"]
        seen.append((sent, held))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("times_only", [False, True])
def test_what_is_frozen_stays_so_though_an_optimizer_is_given_everything(times_only):
    with Recorder(times_only=times_only) as recorder:
        model, mean = net(), net()
        model[0].requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            train(model, optimizer, steps=1)
            with torch.no_grad():
                mean(torch.ones(4, 8))
    frozen = {unit.name: unit.frozen for unit in recorder.finish().units}
    assert frozen == {"0 frozen": True, "2": False, "Sequential.0": True, "Sequential.2": True}


@pytest.mark.parametrize("times_only", [False, True])
def test_what_another_ranks_optimizer_updates_is_not_frozen(cluster, times_only):
    def shard_by_hand():
        with Recorder(times_only=times_only) as recorder:
            model = net()
            train(model, torch.optim.AdamW(model[2 * dist.get_rank()].parameters()), steps=2)
        return described(recorder.finish())

    assert cluster.run(shard_by_hand) == [{"0": (72, False), "2": (72, False)}] * 2


@pytest.mark.parametrize("times_only", [False, True])
def test_what_a_loss_sends_before_any_modules_backward_is_sent_in_backward(cluster, times_only):
    def send():
        with Recorder(times_only=times_only) as recorder:
            loss = net()(torch.ones(4, 8)).square()
            loss.register_hook(lambda _: dist.all_to_all_single(torch.empty(4), torch.ones(4)) and None)
            loss.sum().backward()
        return [event.phase for event in recorder.finish().events if event.op == "all_to_all" and event.kind != "wait"]

    assert cluster.run(send) == [["backward"]] * 2


def train_within(path, first, hook=None):
    model = DistributedDataParallel(nn.Linear(8, 8))
    if hook is not None:
        model.register_comm_hook(None, hook)
    with zerolab.recording(path, steps=(first, first + 1)):
        train(model, torch.optim.AdamW(model.parameters()), steps=6)


def test_a_bucket_that_is_older_than_the_recording_counts_as_one_that_is_not(cluster, tmp_path):
    peaks = []
    for first in (1, 5):
        cluster.run(train_within, tmp_path / "run.json", first)
        peaks.append(Recording.load(tmp_path / "run.json").peak)
    assert peaks[0] == peaks[1]
    assert peaks[0]["communication"] == 288


def halved(_, bucket):
    """What DDP's hooks that compress do: they send another tensor than the bucket, here a quarter of its bytes."""
    small = bucket.buffer().to(torch.int8)
    return dist.all_reduce(small, async_op=True).get_future().then(lambda _: bucket.buffer())


def copied(_, bucket):
    """Asks for the gradients alone, which are views of the bucket."""
    small = torch.cat([gradient.reshape(-1).to(torch.int8) for gradient in bucket.gradients()])
    return dist.all_reduce(small, async_op=True).get_future().then(lambda _: bucket.buffer())


@pytest.mark.parametrize("hook", [halved, copied])
def test_the_bucket_of_a_hook_that_sends_another_tensor_is_communication_and_counts_when_older(cluster, tmp_path, hook):
    peaks = []
    for first in (1, 5):
        cluster.run(train_within, tmp_path / "run.json", first, hook)
        peaks.append(Recording.load(tmp_path / "run.json").peak)
    assert peaks[0] == peaks[1]
    assert peaks[0]["communication"] == 288 + 72
