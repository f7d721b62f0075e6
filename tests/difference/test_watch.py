"""Who is watched: each model under a name of its own, and the thread that trains."""

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from loss_of import LossOf
from small import Named, data, seeded, train
from torch import nn
from torch.autograd import backward  # bound before any fingerprint is taken, as in many a script
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zerolab import Cluster
from zerolab.difference import places
from zerolab.difference.compare import compare
from zerolab.difference.prints import rows_of
from zerolab.difference.runs import Rows, Run
from zerolab.difference.watch import Fingerprints
from zerolab.engines import ENGINES


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


def losses_of(folder, differentiate):
    with Fingerprints(folder, (1, 2)):
        model = seeded(lambda: nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            differentiate(model(data(step)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    return [rank["losses"] for step in Run(folder).steps.values() for rank in step.ranks]


def test_the_loss_of_a_backward_that_was_imported_by_name_is_kept(tmp_path):
    by_method = losses_of(tmp_path / "method", torch.Tensor.backward)
    assert len(by_method) == 2
    assert by_method == losses_of(tmp_path / "name", backward)


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
    ("make", "parameters"),
    [
        (Probing, ["features.weight", "features.bias", "head.weight", "head.bias"]),
        (lambda: nn.Sequential(nn.Linear(8, 4), nn.LazyLinear(2)), ["0.weight", "0.bias", "1.weight", "1.bias"]),
    ],
    ids=["a part that is called for its shape", "a lazy model"],
)
def test_a_model_that_learns_its_shapes_on_the_way_is_seen_whole(tmp_path, make, parameters):
    for name, factor in (("good", 1.0), ("bad", 3.0)):
        shaped_on_the_way(tmp_path / name, make, factor=factor)
    run = Run(tmp_path / "good")
    assert list(run.about) == parameters
    assert {number: step.all_rows.count for number, step in run.steps.items()} == dict.fromkeys((1, 2, 3), len(data(0)))
    assert list(run.steps[1].whole("before")) == parameters
    found = compare(tmp_path / "good", tmp_path / "bad").parting
    assert (found.step, found.phase, found.tensors[-1]) == (1, "gradients that the optimizer reads", parameters[-1])


class Normed(nn.Sequential):
    """A layer, and statistics that each forward changes."""

    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.BatchNorm1d(8))


def one_after_another(folder, *, other_start=0.0):
    """The second gets what the first has made; both are asked for a shape before, and looked at between."""
    with Fingerprints(folder, (1, 2)):
        first, second = seeded(lambda: (Normed(), nn.Sequential(Normed(), nn.Linear(8, 1))))
        with torch.no_grad():
            second[1].bias += other_start
        first(data(7)), second[0](data(8)), second(data(9))
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        for step in range(2):
            second(first(data(step))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            first(data(8)).sum().item()


def test_a_second_model_of_a_step_is_seen_whole_and_forwards_without_a_backward_have_no_rows(tmp_path):
    one_after_another(tmp_path / "good")
    one_after_another(tmp_path / "bad", other_start=0.01)
    run = Run(tmp_path / "good")
    for step in run.steps.values():
        assert step.all_rows.same(Rows(8, sum(rows_of([data(step.number - 1)])), []))
        assert set(step.whole("before")) == set(run.about) == set(step.whole("end"))
        assert len(step.whole("buffers")) == 2 * 2
    found = compare(tmp_path / "good", tmp_path / "bad").parting
    assert (found.phase, found.tensors) == ("parameters before it", ("Sequential.1.bias",))


class Scaled(nn.Linear):
    """Gives a parameter to the loss, too."""

    def __init__(self):
        super().__init__(8, 2)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return super().forward(x), self.scale


def test_a_parameter_among_the_outputs_counts_no_forward_without_a_backward_and_keeps_no_hooks(tmp_path):
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Fingerprints(tmp_path / "run", (1, 2)):
        for step in range(2):
            model(data(9))[0].sum().item()
            rows, scale = model(data(step))
            (rows.square().mean() * scale).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(model.scale._backward_hooks) == 1  # that of its own gradient
    for step in Run(tmp_path / "run").steps.values():
        assert step.all_rows.same(Rows(8, sum(rows_of([data(step.number - 1)])), []))


class Beside(nn.Linear):
    """The loss lies in an object, beside a tensor that nobody uses."""

    def forward(self, x):
        rows = super().forward(x)
        return rows.tanh(), SimpleNamespace(loss=rows.square().mean())


def test_rows_count_when_the_backward_comes_to_an_object_beside_the_outputs(tmp_path):
    model = Beside(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Fingerprints(tmp_path / "run", (1, 2)):
        for step in range(2):
            model(data(9))[1].loss.item()
            model(data(step))[1].loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert {step.all_rows.count for step in Run(tmp_path / "run").steps.values()} == {8}


def test_losses_that_a_loop_keeps_with_their_graphs_keep_no_batches(tmp_path):
    model = nn.Sequential(nn.Tanh(), nn.Linear(8, 2))
    batches, losses = [], []
    with Fingerprints(tmp_path / "run", (1, 2)):
        for step in range(2):
            batch = data(step).clone()
            batches.append(weakref.ref(batch))
            losses.append(model(batch).square().mean())
            losses[-1].backward()
            del batch
        gc.collect()
        assert [batch() for batch in batches] == [None, None]


def sharing(folder, *, factor=1.0):
    """Two models with one body, each trained by its own optimizer."""
    body, *heads = seeded(lambda: (nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 1)))
    pair = [nn.Sequential(body, head) for head in heads]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in pair]
    with Fingerprints(folder, (1, 4)):
        for step in range(4):
            pair[step % 2](data(step)).square().mean().backward()
            heads[1].weight.grad = None if heads[1].weight.grad is None else heads[1].weight.grad * factor
            optimizers[step % 2].step()
            optimizers[step % 2].zero_grad()


def test_two_models_that_share_a_part_are_both_seen_and_the_part_once(tmp_path):
    sharing(tmp_path / "good")
    sharing(tmp_path / "bad", factor=3.0)
    run = Run(tmp_path / "good")
    assert list(run.about) == ["0.weight", "0.bias", "1.weight", "1.bias", "Sequential.1.weight", "Sequential.1.bias"]
    for number, step in run.steps.items():
        head = "1" if number % 2 else "Sequential.1"
        assert set(step.settings()) == {f"{layer}.{kind}" for layer in ("0", head) for kind in ("weight", "bias")}
        assert set(step.whole("end")) == set(list(run.about)[: 4 if number == 1 else 6])
    found = compare(tmp_path / "good", tmp_path / "bad").parting
    assert (found.step, found.tensors) == (2, ("Sequential.1.weight",))


def called(folder, stage, how):
    """An engine's model that the loop calls itself, within a module of its own, or part by part."""
    engine = ENGINES[stage](seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))), torch.optim.AdamW)
    model, wrapped = engine.model, LossOf(engine.model)
    ways = {"within": wrapped, "in parts": lambda x: model[1](model[0](x)).square().mean()}
    with Fingerprints(folder, (1, 2)):
        for step in range(2):
            x = data(step).chunk(dist.get_world_size())[dist.get_rank()]
            engine.backward(ways[how](x) if how in ways else model(x).square().mean())
            engine.step()


def test_what_an_engine_trains_is_seen_under_its_names_however_it_is_called(tmp_path):
    with Cluster(2, "cpu") as cluster:
        cluster.run(called, tmp_path / "good", "ddp", "as it is")
        for stage in ("ddp", "zero3", "fsdp2"):
            for how in ("within", "in parts")[: 1 + (stage != "fsdp2")]:  # which gathers where the model is called
                cluster.run(called, tmp_path / f"{stage} {how}", stage, how)
                run, result = Run(tmp_path / f"{stage} {how}"), compare(tmp_path / "good", tmp_path / f"{stage} {how}")
                assert (result.parting, run.unseen) == (None, []), f"{stage} {how}: {result}"
                assert all(len(step.whole(kind)) == 4 for step in run.steps.values() for kind in ("before", "read"))


def made_twice(folder, times):
    model = seeded(lambda: nn.Linear(8, 2))
    engines = [ENGINES["torch-ddp"](model, torch.optim.SGD, lr=0.1) for _ in range(times)]
    with Fingerprints(folder, (1, 2)):
        for step in range(2):
            engines[-1].backward(engines[-1].model(data(step)).square().mean())
            engines[-1].step()


def test_an_engine_may_take_the_model_of_one_that_is_still_there(tmp_path):
    with Cluster(1, "cpu") as cluster:
        for times in (1, 2):
            cluster.run(made_twice, tmp_path / f"run {times}", times)
    assert compare(tmp_path / "run 1", tmp_path / "run 2").parting is None
    assert list(Run(tmp_path / "run 2").about) == ["weight", "bias"]


def found_within():
    models = [nn.Linear(2, 2) for _ in range(8)]
    engines = [ENGINES["ddp"](model, torch.optim.SGD, lr=0.1) for model in reversed(models)]
    found = places.trained_within(nn.ModuleList(models[1:]))
    return [models.index(model) for model in found], len(engines)


def test_models_of_several_engines_are_found_in_the_order_of_the_module_around_them():
    """Whoever comes first has names without a prefix: on all ranks, and in both runs, that must be the same one."""
    with Cluster(2, "cpu") as cluster:
        assert cluster.run(found_within) == [([*range(1, 8)], 8)] * 2


def test_files_of_an_earlier_run_of_more_ranks_go_though_one_of_its_ranks_left_none(tmp_path):
    tmp_path.joinpath("run").mkdir()
    for rank in (0, 1, 3):
        (tmp_path / "run" / f"rank-{rank}.json").write_text("{}")
    (tmp_path / "run" / "rank-1.notes.json").write_text("{}")  # not one of ours
    train(tmp_path / "run", seeded(Named), lambda model, step: model(data(step)).square().mean())
    assert sorted(path.name for path in tmp_path.glob("run/*")) == ["rank-0.json", "rank-1.notes.json"]
