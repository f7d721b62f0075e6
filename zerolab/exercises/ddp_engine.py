"""An engine of your own.

The loop of the exercise before had one flat. An engine does the same for a model of many units, and starts each unit's
exchange while backward goes on. `Engine` has all of that; four methods say what a stage does. Write them for DDP. A
`flat` has the parameters of one unit end to end in `flat.whole`; `self.world_size` is `N`.

* `own(flat)` returns the tensor that this rank's optimizer updates;
* `reduce(flat, gradient)` starts the exchange of the flat's gradient and returns what `all_reduce(gradient)` or
  `reduce_scatter(gradient)` gives. The engine waits for it;
* `keep(flat, gradient)` gets the gradient after the exchange, and puts the mean gradient of the tensor that `own`
  returned into `flat.mean`. Divide in place: there is no memory for a second gradient;
* `publish()` comes after the update, and sends whatever the other ranks still need; if that is nothing, write `pass`.

Targets, for `Ψ` parameters in fp32, on 1, 2, 3 and 4 ranks:

* every rank updates all parameters from the **mean** of all ranks' gradients;
* after each step the parameters equal those of one process that saw all batches, to 1e-6, under SGD with momentum;
* with Adam a rank keeps `4Ψ + 4Ψ + 8Ψ` bytes, and at no moment another whole gradient;
* each step is one `all_reduce` for each unit: `2 (N-1)/N Ψ` elements sent.
"""

import torch

from zerolab.engines.collectives import Exchange, all_reduce
from zerolab.engines.engine import Engine
from zerolab.engines.flat import Flat
from zerolab.exercises import TrainingTargets, Wrong


class MyDDP(Engine):
    """Every rank owns everything, so that after the update nobody lacks anything."""

    stage = "ddp"

    def own(self, flat: Flat) -> torch.Tensor:
        """All of it."""
        return flat.whole

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """The whole sum on every rank."""
        return all_reduce(gradient, name=flat.layout.name)

    def keep(self, flat: Flat, gradient: torch.Tensor) -> None:
        """The mean, in the gradient's own memory."""
        # In place: a new tensor would be a second whole gradient, at the moment when memory is highest.
        flat.mean = gradient.div_(self.world_size)

    def publish(self) -> None:
        """Equal updates of equal copies need no message."""


solution = MyDDP
hole = {
    "own": "what this rank updates",
    "reduce": "start the exchange",
    "keep": "leave the mean in flat.mean",
    "publish": "send what the others lack, if anything",
}
given = """\
from zerolab.engines.collectives import all_gather, all_reduce, reduce_scatter
from zerolab.engines.engine import Engine"""
look_for = "When it passes, it is the picture from above, drawn from your class: one all-reduce for each unit."
targets = TrainingTargets(
    stage="ddp", shape="engine", returns="the engine", shards=(), collectives=("all_reduce",), world_sizes=(2, 3, 1, 4)
)
hints = (
    "In DDP every rank updates everything. So `own` returns all of `flat.whole`, and nobody lacks anything afterwards.",
    "`reduce` returns `all_reduce(gradient)` and does not wait; after the exchange every rank has the whole sum.",
    "`keep` divides in place, `flat.mean = gradient.div_(self.world_size)`; `publish` has nothing to do: `pass`.",
)
wrong = (
    Wrong(
        says="got the sum of all ranks' gradients, not their mean",
        replace="gradient.div_(self.world_size)",
        by="gradient",
    ),
    Wrong(
        says="the mean divided by `world_size` once too often",
        replace="gradient.div_(self.world_size)",
        by="gradient.div_(self.world_size**2)",
    ),
    Wrong(
        says="the other shards are as old as before the update",
        whole="""
class MyDDP(Engine):
    stage = "ddp"

    def own(self, flat):
        return flat.part(flat.whole)

    def reduce(self, flat, gradient):
        return all_reduce(gradient)

    def keep(self, flat, gradient):
        flat.mean = flat.part(gradient).div_(self.world_size)

    def publish(self):
        pass
""",
    ),
    Wrong(
        says="got the mean in shard 0 alone",
        replace="all_reduce(gradient, name=flat.layout.name)",
        by="reduce_scatter(gradient)",
    ),
    Wrong(
        says="`keep` left nothing in `flat.mean`",
        replace="        flat.mean = gradient.div_(self.world_size)\n",
        by="        gradient.div_(self.world_size)\n",
    ),
    Wrong(says="second copy", replace="gradient.div_(self.world_size)", by="gradient / self.world_size"),
    Wrong(
        says="all_gather",
        replace='        """Equal updates of equal copies need no message."""\n',
        by="        for flat in self.trainable:\n            all_gather(flat.whole).wait()\n",
    ),
)
