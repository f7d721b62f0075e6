"""Who is watched: each model under a name of its own, and the thread that trains."""

import threading

import pytest
import torch
from small import Named, data, seeded
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zerolab.difference.compare import compare
from zerolab.difference.runs import Run
from zerolab.difference.watch import Fingerprints


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def forward(self, x):
        return self.layer(x)


def twins(folder, *, factor=1.0):
    """A policy and two critics of one class; the gradients of the first critic are multiplied."""
    policy, *critics = seeded(lambda: (nn.Linear(8, 8), Critic(8), Critic(8)))
    optimizer = torch.optim.SGD([each for model in (policy, *critics) for each in model.parameters()], lr=0.1)
    with Fingerprints(folder, (1, 1)):
        x = policy(data(1))
        sum(critic(x).square().mean() for critic in critics).backward()
        critics[0].layer.weight.grad *= factor
        optimizer.step()


def test_a_fault_in_one_of_two_models_of_a_class_is_named(tmp_path):
    twins(tmp_path / "good")
    twins(tmp_path / "bad", factor=3.0)
    assert list(Run(tmp_path / "good").about)[::2] == ["weight", "Critic.layer.weight", "Critic2.layer.weight"]
    found = compare(tmp_path / "good", tmp_path / "bad").parting
    assert found.tensors == ("Critic.layer.weight",)
    assert "GOOD's times 3 in 1 of 6 tensors" in found.meaning


def test_another_thread_may_train_meanwhile_and_is_said_not_to_be_seen(tmp_path):
    updates, over, failures = threading.Event(), threading.Event(), []

    def step(model):
        model(data(1)).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    def train_another():
        try:
            step(Critic(8))
        except RuntimeError as error:
            failures.append(error)

    def hook(*_):
        if threading.current_thread() is other:
            updates.set()
            over.wait(10)

    model, other = seeded(Named), threading.Thread(target=train_another)
    handle = register_optimizer_step_pre_hook(hook)
    with Fingerprints(tmp_path / "run", (1, 2)):
        step(model)
        model(data(2)).square().mean().backward()
        other.start()
        updates.wait(10)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        model(data(3))  # the last step is over
        over.set()
        other.join()
    handle.remove()
    assert not failures
    run = Run(tmp_path / "run")
    assert list(run.about) == ["layer.weight", "layer.bias"]
    assert (list(run.steps), run.unseen) == ([1, 2], ["training in other threads than the first"])


def test_an_update_that_began_elsewhere_before_the_first_forward_is_neither_counted_nor_waited_for(tmp_path):
    begun, trains, own = threading.Event(), threading.Event(), torch.ones(3, requires_grad=True)

    def update_another():
        critic = Critic(8)
        critic.layer.weight.grad = torch.ones(1, 8)
        torch.optim.SGD(critic.parameters(), lr=0.1).step()

    def hook(*_):
        if threading.current_thread() is other:
            begun.set()
            trains.wait(10)

    model, other = seeded(Named), threading.Thread(target=update_another)
    with Fingerprints(tmp_path / "run", (1, 1)):
        handle = register_optimizer_step_pre_hook(hook)
        other.start()
        begun.wait(10)
        loss = model(data(1)).square().mean() + own.sum()
        trains.set()
        other.join()
        loss.backward()
        torch.optim.SGD([*model.parameters(), own], lr=0.1).step()
        handle.remove()
    step = Run(tmp_path / "run").steps[1]
    assert set(step.settings()) == {"layer.weight", "layer.bias", "(the optimizer's own tensor 0.2)"}
    assert set(step.ranks[0]["local"]) == {"layer.weight", "layer.bias"}


class Probing(nn.Module):
    """Calls its first part to learn how wide the second must be."""

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(8, 4)
        self.head = nn.Linear(self.features(torch.zeros(1, 8)).shape[1], 2)

    def forward(self, x):
        return self.head(self.features(x))


def shaped_on_the_way(folder, make, *, factor=1.0):
    with Fingerprints(folder, (1, 3)):
        model = seeded(make)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            model(data(step)).square().mean().backward()
            list(model.parameters())[-1].grad *= factor
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("make", "parameters", "first"),
    [
        (Probing, ["features.weight", "features.bias", "head.weight", "head.bias"], 1),
        (lambda: nn.Sequential(nn.Linear(8, 4), nn.LazyLinear(2)), ["0.weight", "0.bias", "1.weight", "1.bias"], 2),
    ],
    ids=["a part that is called for its shape", "a lazy model"],
)
def test_a_model_that_learns_its_shapes_on_the_way_is_seen_whole(tmp_path, make, parameters, first):
    for name, factor in (("good", 1.0), ("bad", 3.0)):
        shaped_on_the_way(tmp_path / name, make, factor=factor)
    run = Run(tmp_path / "good")
    assert list(run.about) == parameters
    assert list(run.steps) == [*range(first, 4)]
    assert run.steps[first].all_rows.count == len(data(0))
    found = compare(tmp_path / "good", tmp_path / "bad").parting
    assert found.tensors[-1] == parameters[-1]
