"""Your own ZeRO-3.

Write the training loop of ZeRO-3. Your function gets

* `units`: a list of units. A unit has `unit.parameters`, its flat: all parameters of the unit end to end, `world_size`
  equal shards, whole when your function begins, and the same on every rank.
    * `unit.release()` gives the flat's memory back; until the next `unit.allocate()` nothing may touch it.
    * `unit.allocate()` takes memory for it again, with nothing in particular in it.
    * `unit.forward(inputs)` gives the outputs. The flat must be whole. The unit remembers its last forward.
    * `unit.backward(output_gradient)` gives `(input_gradient, gradient)`: the gradient of its inputs, for the unit
      before it, and that of its parameters, one new tensor as large as the flat. The flat must be whole again.
* `batches`: an iterator. Each step gives `(inputs, loss_gradient)`: what the first unit gets, and a function. Called
  with the outputs of the last unit it gives the gradient of the loss for them.
* `optimizer_cls`: called with a list of tensors it gives a torch optimizer over them. `step()` updates a tensor `t`
  from `t.grad`. Plain tensors will do; you need neither `torch.nn.Parameter` nor `torch.no_grad`.

`reduce_scatter(tensor)`, `all_gather(tensor)` and `all_reduce(tensor)` work in place on a tensor of `world_size`
shards. They start the exchange; call `.wait()` on what they return.

Between the steps a rank keeps, of the parameters, only a copy of its own shard of every unit; the optimizer and its
`grad`s may stay. No prefetch is asked for; one unit ahead is allowed. Return the optimizer.

Targets, for `Ψ` parameters in fp32, on 1, 2, 3 and 4 ranks:

* the optimizer of rank `r` updates its copy of shard `r` of each unit from the **mean** of all ranks' gradients;
* after each step these shards equal those of DDP under SGD with momentum, to 1e-6;
* with Adam a rank keeps `16Ψ/N` bytes at the update;
* beside its own shards it never has the whole parameters of more than two units, nor whole gradients of more than two;
* each step is two `all_gather` and one `reduce_scatter` for each unit: `3 (N-1)/N Ψ` elements sent. The last unit, too,
  is released and gathered again (a real engine may keep it).
"""

import torch

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, ZERO3, Batches, OptimizerClass
from zerolab.exercises.harness.unit import Unit


def zero3(
    units: list[Unit], batches: Batches, optimizer_cls: OptimizerClass, rank: int, world_size: int
) -> torch.optim.Optimizer:
    """Trains as long as there are batches; a unit is whole only while it is used."""
    # Clones: the flats are about to lose their memory, and a view would lose it with them.
    mine = [unit.parameters.chunk(world_size)[rank].clone() for unit in units]
    for unit in units:
        unit.release()
    optimizer = optimizer_cls(mine)

    def gather(number: int) -> None:
        units[number].allocate()
        # Fresh memory has nothing of this rank in it, and all_gather sends what stands at this rank's place.
        units[number].parameters.chunk(world_size)[rank].copy_(mine[number])
        all_gather(units[number].parameters).wait()

    for inputs, loss_gradient in batches:
        outputs = inputs
        for number, unit in enumerate(units):
            gather(number)
            outputs = unit.forward(outputs)
            unit.release()
        output_gradient = loss_gradient(outputs)
        for number, unit in reversed(list(enumerate(units))):
            gather(number)
            output_gradient, gradient = unit.backward(output_gradient)
            unit.release()
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
    return optimizer


solution = zero3
hole = "gather each unit before it is used, release it after"
given = COLLECTIVES
look_for = (
    "When it passes, look at the parameters in the picture: one unit after the other becomes whole and goes again, "
    "forwards and then backwards, and each rank keeps its own shard of every unit."
)
targets = ZERO3
hints = (
    (
        "Make `mine`: a clone of your shard of each unit. Then release every unit, and make the optimizer over `mine`. "
        "`all_gather` sends the shard at your place in the flat, so copy `mine[number]` there before you call it."
    ),
    (
        "Write a helper `gather(number)`: allocate, copy your shard in, all_gather, wait. Forward is then, for each "
        "unit: gather, forward, release. Backward is the same from the last unit to the first."
    ),
    (
        "What `unit.backward` gives second is this rank's gradient of the whole unit. Reduce-scatter it, set "
        "`mine[number].grad` to your shard divided by `world_size` (a new tensor, not a view), and delete the whole "
        "one: a variable outlives its loop."
    ),
)
wrong = (
    Wrong(
        says="used after release",
        replace="            gather(number)\n            output_gradient, gradient",
        by="            output_gradient, gradient",
    ),
    Wrong(
        says="too many units were whole at a time",
        replace="            outputs = unit.forward(outputs)\n            unit.release()\n",
        by="            outputs = unit.forward(outputs)\n",
    ),
    Wrong(
        says="the optimizer's tensor for unit 0 lies in the flat, which is released",
        replace="[rank].clone() for unit in units",
        by="[rank] for unit in units",
    ),
    Wrong(
        says="got the sum of all ranks' gradients, not their mean",
        replace=" / world_size",
        by=".clone()",
    ),
    Wrong(
        says="all_reduce where a reduce_scatter is enough",
        replace="reduce_scatter(gradient).wait()",
        by="all_reduce(gradient).wait()",
    ),
    Wrong(
        says="differs from the mean over all ranks",
        replace="        units[number].parameters.chunk(world_size)[rank].copy_(mine[number])\n",
        by="",
    ),
    Wrong(
        says="more than its own shard is still there",
        replace="            del gradient\n",
        by="",
    ),
    Wrong(
        says="got this rank's own gradient",
        replace="            reduce_scatter(gradient).wait()\n",
        by="",
    ),
)
