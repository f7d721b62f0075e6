"""Fix the loop.

The cell below has a training loop as one meets it. What it computes is right, but it holds too much and sends too much,
for the reasons of this lesson. Fix it, and take the `hole` away.

* `model`: a `first` layer, equal `blocks`, and a `last` layer, the same on every rank.
* `inputs`, `targets`: what this rank reads, of shape [steps, micro-batches, rows, numbers].

It returns three things, and they must stay what they are: the model; the log, for each step the mean loss over all
micro-batches of all ranks; and the largest number, without its sign, that the model has said on this rank.

Targets, on 2 and 3 ranks:

* the weights equal those of one process that reads the rows of all ranks at once, to 1e-5, and so do log and largest;
* beside its shards a rank never has more parameters than two whole blocks, and `first` and `last`;
* a step makes one `reduce_scatter` of each unit, and one `all_reduce`; there is room for whole gradients;
* from one update to the next a rank's memory grows by no more than 256 bytes; outside of torch, in numpy arrays, lists
  or the like, there are never more than 2,048.
"""

import copy
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from zerolab.exercises import Wrong
from zerolab.exercises.harness.onranks import Arguments, RankTargets
from zerolab.exercises.harness.plain import Words, listed, plain
from zerolab.exercises.harness.recorded import outside_in_words, started
from zerolab.exercises.harness.sharded import OUT, STACK_STEPS, WIDTH, Stack, whole
from zerolab.exercises.harness.targets import Judgement

if TYPE_CHECKING:
    from zerolab.recording.events import Event
    from zerolab.recording.recording import Recording

PARTS, ROWS = 3, 32  # as many micro-batches as ranks would not tell a sum over the one from a sum over the other
OUTSIDE = 2048  # bytes that may lie outside of torch: solutions have up to 500; what the model has said takes 4,000
GROWTH = 256  # bytes: what is kept of a step may be a number for each micro-batch
Flat = torch.Tensor
Most = Callable[[float, Flat], float]
Mixed = Callable[[list[Flat], list[Flat]], Flat]
"""Of the gradients of a step's micro-batches, each over all ranks, and those of the step before: what updates."""


def train(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[Any, list[float], float]:
    """A unit for each block; sums and maxima in place of tensors; one reduction, one number for the log a step."""
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    log, largest = [], 0.0
    for step in range(len(inputs)):
        total = torch.zeros(())
        for number, (rows, wanted) in enumerate(zip(inputs[step], targets[step], strict=True), start=1):
            model.set_requires_gradient_sync(number == len(inputs[step]))
            said = model(rows)
            loss = nn.functional.mse_loss(said, wanted) / len(inputs[step])
            loss.backward()
            largest = max(largest, said.abs().max().item())
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        log.append(total.item() / dist.get_world_size())
    return model, log, largest


def draw(dice: random.Random, world_size: int) -> Arguments:
    """The same model for each rank, with rows of its own; what it says first is far below zero, and its largest."""
    model = Stack(dice.randrange(20, 33), dice.randrange(3, 5), dice.randrange(2**31))
    model.last.bias.data -= 2
    numbers = np.random.default_rng(dice.randrange(2**31))
    shape = (world_size, STACK_STEPS, PARTS, ROWS)
    inputs, targets = (numbers.standard_normal((*shape, width)).astype(np.float32) for width in (WIDTH, OUT))
    return [(model, *each) for each in zip(inputs, targets, strict=True)]


def read(returned: Any) -> Any:
    """The three things as they are compared."""
    if not isinstance(returned, (tuple, list)) or len(returned) != 3:
        returned = whole(returned)  # on every rank, for the others' sake
        return returned if returned is None else Words("something else than model, log and largest")
    model, log, largest = returned
    return named(whole(model), log, largest)


def named(weights: Any, log: Any, largest: Any) -> dict[str, Any]:
    """The three by name, the log as a list, in whatever it was kept."""
    return {"model": weights, "log": listed(plain(log)), "largest": largest}


def together(now: list[Flat], _before: list[Flat]) -> Flat:
    """All micro-batches, as it is right."""
    return sum(now, torch.zeros(()))


def larger(largest: float, said: Flat) -> float:
    """The largest so far, without its sign."""
    return max(largest, said.abs().max().item())


def alone(
    arguments: Arguments, rank: int, mixed: Mixed = together, most: Most = larger, *, logs_own: bool = False
) -> dict[str, Any]:
    """What one process ends with that reads what `arguments` has for all ranks; `largest` is that of a rank's rows."""
    model = copy.deepcopy(arguments[0][0])
    inputs, targets = (torch.from_numpy(np.stack([each[k] for each in arguments])) for k in (1, 2))
    log, largest = [], 0.0
    before: list[Flat] = []
    velocity = torch.zeros(())
    for step in range(STACK_STEPS):
        now, losses = [], []
        for part in range(PARTS):
            said = model(inputs[:, step, part])
            losses.append(nn.functional.mse_loss(said, targets[:, step, part]) / PARTS)
            now.append(_flat(torch.autograd.grad(losses[-1], list(model.parameters()))))
            largest = most(largest, said[rank])
            if logs_own:
                losses[-1] = nn.functional.mse_loss(said[rank], targets[rank, step, part]) / PARTS
        # Not torch's SGD, because the first optimizer of a kernel imports for seconds.
        velocity = 0.9 * velocity + mixed(now, before or [torch.zeros_like(each) for each in now])
        _update(model, velocity)
        log.append(torch.stack(losses).sum().item())
        before = now
    return named(whole(model), log, largest)


def _flat(tensors: Any) -> Flat:
    return torch.cat([each.flatten() for each in tensors])


def _update(model: nn.Module, velocity: Flat) -> None:
    parameters = list(model.parameters())
    for parameter, part in zip(parameters, velocity.split([each.numel() for each in parameters]), strict=True):
        parameter.data.add_(part.view_as(parameter), alpha=-0.1)


def seen(recording: "Recording", arguments: Arguments) -> Iterator[Judgement]:
    """What a rank had at its highest moment, exchanged, and kept; nothing of what did not train."""
    if recording.info.steps < STACK_STEPS:
        return
    model: Stack = arguments[0][0]
    rows, most_whole = model.held(recording.world_size)
    made = [event for event in started(recording.ranks[0]) if event.step == STACK_STEPS]
    yield "shards", _judge_kept(recording.state["parameters"], rows, made)
    held, allowed = recording.highest("parameters"), rows + most_whole
    yield "peak", _explain_peak(held, allowed, made) if held > allowed else ""
    outside = [held for _, held in recording.results or []]
    yield "memory", _judge_growth(recording) or _judge_outside(outside)
    yield "exchanges", _judge_exchanges(made, len(model.blocks))


def _judge_kept(kept: int, rows: int, made: "list[Event]") -> str:
    if kept <= rows:
        return ""
    why = f"a rank keeps {kept:,} bytes of parameters at the update; its rows are {rows:,}. "
    if not any(event.op == "all_gather" for event in made):
        return f"{why}Nothing is sharded."
    return f"{why}What is in no unit stays whole, and an optimizer made before `fully_shard` keeps the model as it was."


def _explain_peak(held: int, allowed: int, made: "list[Event]") -> str:
    why = f"a rank held up to {held:,} bytes of parameters; {allowed:,} are enough. "
    gathers = [event for event in made if event.op == "all_gather"]
    units = {event.unit for event in gathers}
    if len(units) == 1:
        return f"{why}The whole model is one unit, and is whole while any of it is used. Make a unit of each block."
    if len(gathers) <= PARTS * len(units):
        return f"{why}Units stay whole from forward to backward, or longer: let them be resharded."
    return f"{why}More than two blocks were whole at a time. Make a unit of each block, and of each by itself."


def _judge_exchanges(made: "list[Event]", blocks: int) -> str:
    counts = {op: sum(event.op == op for event in made) for op in ("all_gather", "reduce_scatter", "all_reduce")}
    if counts["all_gather"] > PARTS * (2 * blocks + 4) + 1:
        return f"a step made {counts['all_gather']} all_gather: units smaller than a block save next to nothing."
    units = len({event.unit for event in made if event.op == "all_gather" and event.unit})
    if counts["reduce_scatter"] > units:
        return (
            f"a step made {counts['reduce_scatter']} reduce_scatter for {units} units: gradients are reduced after "
            "every micro-batch. Let them be added up on the rank, and reduced after the last."
        )
    if counts["all_reduce"] > 1:
        return f"a step made {counts['all_reduce']} all_reduce; the log needs one number a step, and one exchange."
    return ""


def _judge_growth(recording: "Recording") -> str:
    """By what lies at two updates beside model state, which does not grow."""
    for rank in recording.ranks:
        at = {event.step: event.live for event in rank.events if event.kind == "optimizer" and event.live}
        earlier, last = (sum(at[step].get(each, 0) for each in ("activations", "other")) for step in (2, 3))
        if last - earlier > GROWTH:
            return (
                f"from one update to the next rank {rank.rank} holds {last - earlier:,} bytes more. Something of every "
                "micro-batch is kept, such as what the model has said: keep the number that is asked for."
            )
    return ""


def _judge_outside(of_ranks: list[int]) -> str:
    most = max(of_ranks, default=0)
    return outside_in_words(of_ranks.index(most), most, OUTSIDE) if most > OUTSIDE else ""


def added_up(arguments: Arguments, rank: int) -> dict[str, Any]:
    """Where no loss is divided by the number of micro-batches."""
    ends = alone(arguments, rank, lambda now, _before: PARTS * together(now, []))
    return ends | {"log": [PARTS * each for each in ends["log"]]}


def logged(arguments: Arguments, rank: int, times: float) -> dict[str, Any]:
    """Where the training is right and the log is not."""
    ends = alone(arguments, rank)
    return ends | {"log": [times * each for each in ends["log"]]}


def first_of_each(now: list[Flat], before: list[Flat]) -> Flat:
    """What was added up after the first micro-batch waits for the reduction of the next step."""
    return now[0] + sum(before[1:], torch.zeros(()))


solution = train
begins_broken = True
given = """import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard"""
look_for = (
    "When it passes, look at a step in the timeline: twice the gathers, and the reductions only at its end. Both "
    "pictures are of the same rows; the table above them says whose loop costs less."
)
targets = RankTargets(
    draw=draw,
    wanted=alone,
    reads=read,
    seen=seen,
    looks_outside=True,
    tolerance=1e-5,
    world_sizes=(2, 3),
    allows=("torch.distributed.fsdp",),
)
hints = (
    "One fault at a time: `check` names the next one. Which modules should be units?",
    "`set_requires_gradient_sync(False)` for all micro-batches but the last; add losses up in a tensor of one number.",
    "For `largest` keep a number: `max(largest, said.abs().max().item())`. One `all_reduce` a step is enough.",
)
BROKEN = """
def train(model, inputs, targets):
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    log, outputs = [], []
    for step in range(len(inputs)):
        total = 0.0
        for rows, wanted in zip(inputs[step], targets[step], strict=True):
            said = model(rows)
            loss = nn.functional.mse_loss(said, wanted) / len(inputs[step])
            loss.backward()
            outputs.append(said)
            dist.all_reduce(loss)
            total += loss.item() / dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        log.append(total)
    return model, log, torch.cat(outputs).abs().max().item()
"""
BLOCKS = """    for block in model.blocks:
        fully_shard(block)
"""
OPTIMIZER = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
SYNC = "            model.set_requires_gradient_sync(number == len(inputs[step]))\n"
wrong = (
    Wrong(says="The whole model is one unit", whole=BROKEN),
    Wrong(says="The whole model is one unit", replace=BLOCKS, by=""),
    Wrong(
        says="Units stay whole from forward to backward",
        replace="fully_shard(block)",
        by="fully_shard(block, reshard_after_forward=False)",
    ),
    Wrong(says="gradients are reduced after every micro-batch", replace=SYNC, by=""),
    Wrong(
        says="reduces after the first micro-batch: what comes after it waits for the next step's",
        replace="number == len(inputs[step])",
        by="number == 1",
        gives=lambda arguments, rank: alone(arguments, rank, first_of_each),
    ),
    Wrong(
        says="the log needs one number a step, and one exchange",
        replace="            total += loss.detach()\n",
        by="            mine = loss.detach().clone()\n            dist.all_reduce(mine)\n            total += mine\n",
    ),
    Wrong(
        says="Something of every micro-batch is kept",
        whole=BROKEN.replace("    fully_shard(model)\n", f"{BLOCKS}    fully_shard(model)\n"),
    ),
    Wrong(
        says="`train` hangs",
        replace="        dist.all_reduce(total)\n",
        by="        if dist.get_rank() == 0:\n            dist.all_reduce(total)\n",
    ),
    Wrong(
        says="takes steps of all micro-batches added up: divide each loss by their number",
        replace="nn.functional.mse_loss(said, wanted) / len(inputs[step])",
        by="nn.functional.mse_loss(said, wanted)",
        gives=added_up,
    ),
    Wrong(
        says="logs the losses of all ranks added up",
        replace="total.item() / dist.get_world_size()",
        by="total.item()",
        gives=lambda arguments, rank: logged(arguments, rank, len(arguments)),
    ),
    Wrong(
        says="logs the losses of all micro-batches added up",
        replace="            total += loss.detach()\n",
        by="            total += loss.detach() * len(inputs[step])\n",
        gives=lambda arguments, rank: logged(arguments, rank, PARTS),
    ),
    Wrong(
        says="logs this rank's own losses, where the mean over all ranks is asked for",
        replace="        dist.all_reduce(total)\n        log.append(total.item() / dist.get_world_size())\n",
        by="        log.append(total.item())\n",
        gives=lambda arguments, rank: alone(arguments, rank, logs_own=True),
    ),
    Wrong(
        says="takes the largest number with its sign, where one below zero may be larger without it",
        replace="said.abs().max()",
        by="said.max()",
        gives=lambda arguments, rank: alone(arguments, rank, most=lambda known, said: max(known, said.max().item())),
    ),
    Wrong(
        says="keeps the largest number of the last micro-batch alone",
        replace="max(largest, said.abs().max().item())",
        by="said.abs().max().item()",
        gives=lambda arguments, rank: alone(arguments, rank, most=lambda _largest, said: larger(0.0, said)),
    ),
    Wrong(
        says="an optimizer made before `fully_shard` keeps the model as it was",
        replace=f"{BLOCKS}    fully_shard(model)\n{OPTIMIZER}",
        by=f"{OPTIMIZER}{BLOCKS}    fully_shard(model)\n",
    ),
)
