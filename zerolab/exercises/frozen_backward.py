"""Backward through frozen weights.

A stack of linear layers is frozen, and beside each weight is an adapter of two thin matrices. A layer makes of its
inputs `x` the outputs `x @ weight.T + x @ down.T @ up`. The weights are sharded over the `N` ranks, the adapters are
whole on every rank, and those of the lowest layers are frozen, too. Forward has run. Your function gets

* `shards`, [layers, width / N, width]: this rank's rows of each frozen weight, which is [width, width];
* `adapters`, [layers, 2, r, width]: each layer's `down` and `up`; `up` is transposed here, so that both fit into
  one tensor;
* `inputs`, [layers, rows, width]: what came into each layer;
* `gradient`, [rows, width]: the gradient of this rank's loss with respect to the last layer's outputs;
* `first`: the number of the lowest layer whose adapter is trained.

With `back = gradient @ up.T`, the gradient of `down` is `back.T @ x`, and that of `up` is `(x @ down.T).T @ gradient`.
The layer below gets `gradient @ weight + back @ down`.

Return the **mean** over all ranks of the gradients of `adapters[first:]`, in its shape. `dist.all_gather(parts, part)`
fills the list `parts`, one tensor for each rank, with the `part` of each; `dist.all_reduce(tensor)` leaves the sum over
all ranks in place.

Targets, on 1, 2, 3 and 4 ranks:

* the mean gradients, to 1e-4;
* each rank sends its rows of a weight to the others only where backward needs that weight, and the adapters' gradients
  as an all-reduce does.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong

Arguments = list[tuple[Any, ...]]
GoesOn = Callable[[Any, Any, Any], Any]


def frozen_backward(
    shards: torch.Tensor, adapters: torch.Tensor, inputs: torch.Tensor, gradient: torch.Tensor, first: int
) -> torch.Tensor:
    """A frozen weight is gathered for what is trained below it, and where nothing is, not at all."""
    gradients = torch.empty_like(adapters[first:])
    for layer in reversed(range(first, len(shards))):
        (down, up), x = adapters[layer], inputs[layer]
        back = gradient @ up.T
        gradients[layer - first, 0] = back.T @ x
        gradients[layer - first, 1] = (x @ down.T).T @ gradient
        if layer > first:
            parts = [torch.empty_like(shards[layer]) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, shards[layer])
            gradient = gradient @ torch.cat(parts) + back @ down
    dist.all_reduce(gradients)
    return gradients / dist.get_world_size()


def draw(dice: random.Random, world_size: int) -> Arguments:
    """Four to six layers; at least the lowest has no adapter that is trained, and at least the two highest have."""
    numbers = np.random.default_rng(dice.randrange(2**31))
    layers, width, rank, rows = dice.randrange(4, 7), dice.choice([24, 36]), dice.randrange(2, 5), dice.randrange(3, 7)
    first = dice.randrange(1, layers - 1)

    def normal(*shape: int) -> Any:
        return (numbers.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    weights, adapters = normal(layers, width, width), normal(layers, 2, rank, width)
    return [
        (rows_of, adapters, normal(layers, rows, width), normal(rows, width), first)
        for rows_of in np.split(weights, world_size, axis=1)
    ]


def by_rule(gradient: Any, weight: Any, through_adapter: Any) -> Any:
    """What goes on to the layer below."""
    return gradient @ weight + through_adapter


def on_rank(arguments: Arguments, rank: int, goes_on: GoesOn = by_rule) -> torch.Tensor:
    """The gradients of one rank's own loss."""
    _, adapters, inputs, gradient, first = arguments[rank]
    weights = np.concatenate([shards for shards, *_ in arguments], axis=1)
    gradients = np.empty_like(adapters[first:])
    for layer in reversed(range(first, len(weights))):
        (down, up), x = adapters[layer], inputs[layer]
        back = gradient @ up.T
        gradients[layer - first] = back.T @ x, (x @ down.T).T @ gradient
        gradient = goes_on(gradient, weights[layer], back @ down)
    return torch.from_numpy(gradients)


def added(arguments: Arguments, goes_on: GoesOn = by_rule) -> torch.Tensor:
    """The sum of all ranks' gradients."""
    return torch.stack([on_rank(arguments, rank, goes_on) for rank in range(len(arguments))]).sum(0)


def mean(arguments: Arguments, goes_on: GoesOn = by_rule) -> torch.Tensor:
    """The mean of all ranks' gradients."""
    return added(arguments, goes_on) / len(arguments)


def by_own_rows(arguments: Arguments) -> torch.Tensor:
    """The mean where each rank multiplies with its own rows of the weights."""
    rows = arguments[0][0].shape[1]

    def of(rank: int) -> torch.Tensor:
        mine = slice(rank * rows, (rank + 1) * rows)
        return on_rank(arguments, rank, lambda gradient, weight, adapter: gradient[:, mine] @ weight[mine] + adapter)

    return torch.stack([of(rank) for rank in range(len(arguments))]).mean(0)


def sent(arguments: tuple[Any, ...], world_size: int) -> float:
    """Elements: a shard of each weight above the lowest trained layer to all others, and an all-reduce of adapters."""
    shards, adapters, *_, first = arguments
    return float((world_size - 1) * (shards[first + 1 :].size + 2 * adapters[first:].size / world_size))


solution = frozen_backward
hole = "go back through the layers, gather what is needed, reduce what is trained"
given = "import torch\nimport torch.distributed as dist"
look_for = (
    "When it passes, count the all-gathers: one fewer than trained adapters, and one small all-reduce after them."
)
targets = RankTargets(draw=draw, wanted=lambda arguments, _rank: mean(arguments), sent=sent, tolerance=1e-4)
hints = (
    "Go from the last layer down to `first`. An adapter's gradients need `gradient` and the layer's inputs, no weight.",
    "Only what goes on needs the weight, `torch.cat(parts)` of the gathered rows. Below `first` nothing is trained.",
    "Keep the gradients in one tensor of the shape of `adapters[first:]`: it takes one `dist.all_reduce` at the end.",
)
ON = "gradient = gradient @ torch.cat(parts) + back @ down"
wrong = (
    Wrong(
        says="gathers one weight more than is needed: below the lowest trained layer nothing is trained",
        sends=lambda arguments, world_size: sent(arguments, world_size) + (world_size - 1) * arguments[0][0].size,
        replace="if layer > first:",
        by="if True:",
    ),
    Wrong(
        says="leaves out what goes through the frozen weights, as if what is frozen passed no gradient on",
        replace=ON,
        by="gradient = back @ down",
        gives=lambda arguments, _rank: mean(arguments, lambda _gradient, _weight, adapter: adapter),
    ),
    Wrong(
        says="leaves out what goes on through the adapters",
        replace=ON,
        by="gradient = gradient @ torch.cat(parts)",
        gives=lambda arguments, _rank: mean(arguments, lambda gradient, weight, _adapter: gradient @ weight),
    ),
    Wrong(
        says="multiplies with the transposed weights, as forward does",
        replace="torch.cat(parts)",
        by="torch.cat(parts).T",
        gives=lambda arguments, _rank: mean(arguments, lambda gradient, weight, adapter: gradient @ weight.T + adapter),
    ),
    Wrong(
        says="returns the sum over all ranks, not the mean",
        replace="gradients / dist.get_world_size()",
        by="gradients",
        gives=lambda arguments, _rank: added(arguments),
    ),
    Wrong(
        says="returns the gradients of this rank's own loss: they are not reduced",
        replace="    dist.all_reduce(gradients)\n    return gradients / dist.get_world_size()\n",
        by="    return gradients\n",
        gives=on_rank,
    ),
    Wrong(says="right is", replace="adapters[first:]", by="adapters"),
    Wrong(
        says="multiplies with this rank's rows of a weight alone: gather those of all ranks",
        replace=ON,
        by="rows = dist.get_rank() * shards.shape[1]\n"
        "            gradient = gradient[:, rows : rows + shards.shape[1]] @ shards[layer] + back @ down",
        gives=lambda arguments, _rank: by_own_rows(arguments),
    ),
    Wrong(
        says="reduces the gradients of all adapters, where those of the lowest layers are frozen",
        sends=lambda arguments, world_size: (
            sent(arguments, world_size) + 2 * (world_size - 1) * arguments[1][: arguments[4]].size / world_size
        ),
        replace="    dist.all_reduce(gradients)\n",
        by="    everything = torch.zeros_like(adapters)\n"
        "    everything[first:] = gradients\n"
        "    dist.all_reduce(everything)\n"
        "    gradients = everything[first:]\n",
    ),
    Wrong(
        says="reduces gradients of the weights, which are frozen",
        sends=lambda arguments, world_size: (
            sent(arguments, world_size) + 2 * (world_size - 1) * arguments[0][arguments[4] + 1 :].size
        ),
        replace="            gradient = gradient @ torch",
        by="            of_weight = gradient.T @ x\n"
        "            dist.all_reduce(of_weight)\n"
        "            gradient = gradient @ torch",
    ),
)
