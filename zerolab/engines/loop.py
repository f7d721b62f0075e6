"""What a training loop may ask of an engine beside the step: to accumulate, see, clip and drop gradients."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from functools import reduce
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines.agreement import check_same_on_all_ranks, communication_device
from zerolab.engines.checks import check_unchanged
from zerolab.engines.collectives import Exchange
from zerolab.engines.flat import Flat, Presence
from zerolab.engines.holdings import Holding, held_in
from zerolab.engines.precision import COMPUTE_DTYPES, cast_floating
from zerolab.engines.reduction import NONE, Reduction
from zerolab.engines.scaling import Scaling
from zerolab.engines.sharded import ShardedCheckpoints

TWO_AT_ONCE = (
    "a backward began before the last one ended: do not run one inside another, and use "
    "checkpoint(..., use_reentrant=False). If the last one failed, its gradients are dropped now; call backward() again"
)


class Next(Enum):
    """What a training loop may do next."""

    BACKWARD = auto()  # there are no mean gradients yet
    ACCUMULATE = auto()  # within `accumulate`: backwards add up, and there is nothing to update
    STEP = auto()  # the mean gradients are there


class Loop(ShardedCheckpoints):
    """The gradients of an engine, from the backward that brings them to the step that uses them."""

    reduces_every_backward: ClassVar[bool] = False  # True where accumulation has only a shard to add up in
    precision: str
    _reduction: Reduction
    _scaling: Scaling
    _next: Next = Next.BACKWARD
    _has_compared_rows = False
    keeps_whole = False  # what is whole stays so, whatever runs: somebody looks at all parameters

    def _prepare_inputs(self, module: nn.Module, inputs: Any, keywords: dict[str, Any]) -> tuple[Any, Any] | None:
        """What the model is called with, in its dtype; of the first batch all ranks must bring as many rows.

        Else the mean over ranks would not be the mean over the batch.
        """
        if not self._has_compared_rows and torch.is_grad_enabled():  # an evaluation may differ, or be rank 0's alone
            check_same_on_all_ranks([_rows(inputs, keywords)], "the numbers of rows in the first batch")
            self._has_compared_rows = True
        dtype = COMPUTE_DTYPES[self.precision]
        return None if dtype is None else cast_floating((inputs, keywords), dtype)

    def refuse_second_backward(self) -> None:
        """Raises RuntimeError between a backward and the step."""
        if self._next is Next.STEP:
            raise RuntimeError(
                "a second backward() before step(): wrap all but the last one in engine.accumulate(), or drop what the "
                "first one brought by engine.zero_grad()"
            )

    def begin_backward(self, reached: set[int], loss: torch.Tensor | None = None) -> None:
        """A backward begins, from this loss if it is known; it brings gradients for the parameters with these ids."""
        if self._reduction.backward != NONE:
            self._reduction.drop()
            raise RuntimeError(TWO_AT_ONCE)
        check_unchanged(self.model, self.flats, reached)
        self._reduction.expect(reached, loss, is_last=self._next is not Next.ACCUMULATE)

    def end_backward(self) -> None:
        """It is done."""
        self._reduction.finish()
        if self._next is not Next.ACCUMULATE:
            self._next = Next.STEP
            self._scaling.stand_in()
        else:
            for flat in self.trainable:
                flat.let_gradients_add_up()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Within it gradients add up and nothing is updated: for all micro-batches of a step but the last.

        They are sums over micro-batches: divide each loss by their number to get the mean.
        """
        self.refuse_second_backward()
        before, self._next = self._next, Next.ACCUMULATE
        try:
            yield
        finally:
            self._next = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step, those of micro-batches too.

        `engine.optimizer.zero_grad()` is this method: the optimizer's own would leave what lies in the flats. Every
        rank calls it: what other ranks brought lies in this one's shards.
        """
        if self.reduces_every_backward and any(flat.mean is not None for flat in self.trainable):
            check_same_on_all_ranks(["zero_grad"], "what to do with the gradients")
        self._reduction.drop()
        if self._next is Next.STEP:
            self._next = Next.BACKWARD

    def gradients(self) -> dict[str, torch.Tensor]:
        """This rank's mean gradients by parameter name, to be seen and to be changed in place before the step.

        Each has its parameter's shape where the rank has all of it, as in `ddp`. Else it is the elements that the rank
        owns, shape [owned], and parameters of which it owns none are missing: `.grad`, which torch wants in the
        parameter's shape, could not hold that. So is a parameter missing that got no gradient on any rank.
        """
        self.refuse_without_gradients("see")
        self._scaling.refuse_scaled("see")
        means = [(flat, mean) for flat in self.trainable if (mean := flat.final_mean) is not None]
        return {
            slot.name: mine for flat, mean in means for slot, mine in flat.by_parameter(mean) if slot in flat.usage.used
        }

    def shards(self) -> dict[str, torch.Tensor]:
        """What this rank owns of the parameters, by name: the very elements that `gradients` gives the gradients of.

        For what is done element by element beside the training, such as an average of the weights over steps. In mixed
        precision they are the fp32 masters. To be read: what is to be written goes into `full_parameters`.
        """
        for flat in self.flats:
            flat.take_over()
        shards = ((flat, flat.owned.detach()) for flat in self.flats)
        return {slot.name: mine for flat, shard in shards for slot, mine in flat.by_parameter(shard)}

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients so that their norm, over all ranks, is at most `max_norm`; returns the norm before.

        Between `backward` and `step`. One all_reduce of a single number where gradients are sharded.

        Raises:
            ValueError: `max_norm` is not above 0.
            RuntimeError: there are no mean gradients; or, in fp16, `engine.scaler` has not been asked to
                `unscale_(engine.optimizer)`.
        """
        if not max_norm > 0:
            raise ValueError(f"max_norm is {max_norm!r}: give a norm above 0")
        self.refuse_without_gradients("clip")
        self._scaling.refuse_scaled("clip")
        means = [(mean, flat) for flat in self.trainable if (mean := flat.final_mean) is not None]
        if self._scaling.is_unscaled:  # but what is not updated: who has nothing else sends as wide a number
            means = [(mean.to(flat.owned), flat) for mean, flat in means]
        sharded = [mean for mean, flat in means if flat.is_sharded]
        norm = norm_over_ranks(sharded, [mean for mean, flat in means if not flat.is_sharded])
        for mean, _ in means:
            mean.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0).to(mean.device))
        return norm

    def refuse_without_gradients(self, use: str) -> None:
        """Raises RuntimeError unless a backward has brought the mean gradients."""
        if self._next is not Next.STEP:
            raise RuntimeError(f"no gradients to {use}: call backward() first, and the last one outside accumulate()")

    @contextmanager
    def full_parameters(self) -> Iterator[None]:
        """Within it every parameter of `engine.model` is whole on every rank. Collective: all ranks call it.

        What is written into them stays, as between steps: every rank must write the same. The model may run.
        """
        released = [flat for flat in self.flats if flat.presence is not Presence.WHOLE]
        before, self.keeps_whole = self.keeps_whole, True
        try:
            for flat in released:
                self.gather(flat)
            yield
        finally:
            self.keeps_whole = before
            for flat in released:
                self.release(flat)

    def start_gather(self, flat: Flat) -> None:
        """Starts making the flat whole; in most stages it always is."""

    def gather(self, flat: Flat) -> None:
        """Makes the flat whole on every rank."""
        flat.settle()

    def receive(self, flat: Flat, exchange: Exchange) -> None:
        """Waits for a flat's updated parameters; over NCCL whoever uses them first does, in the next forward mostly.

        So the flats arrive one by one while the units before them compute. Over gloo, where the sending takes the very
        cores that compute, it was measured to win nothing.
        """
        if self._reduction.overlaps_streams:
            flat.arrive(exchange)
        else:
            exchange.wait()

    def release(self, flat: Flat) -> None:
        """Gives the flat's memory back, in a stage that gathers."""

    def holdings(self, flats: Collection[str] | None = None) -> Iterator[Holding]:
        """What this rank holds right now of the model's state, or of these flats; several may lie in one storage."""
        for flat in self.flats:
            if flats is None or flat.layout.name in flats:
                yield from held_in(flat, self.optimizer.state)


def _rows(inputs: tuple[Any, ...], keywords: dict[str, Any]) -> int:
    """The number of rows of a batch: the first dimension of its first tensor; -1 if there is none."""
    tensors = (value for value in [*inputs, *keywords.values()] if isinstance(value, torch.Tensor) and value.dim())
    return next((len(tensor) for tensor in tensors), -1)


def norm_over_ranks(sharded: Sequence[torch.Tensor], whole: Sequence[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of all gradients together, a single number in fp32 or better.

    Args:
        sharded: those of which each rank has a part: their squares are added up, by one all_reduce of a number.
        whole: those that every rank has, of any floating-point or complex types, too.
    """
    squares = []
    if sharded:
        # From main memory, where offloaded gradients were unscaled.
        squares.append(_sum_of_squares(sharded).to(communication_device()))
        dist.all_reduce(squares[0])
    if whole:
        squares.append(_sum_of_squares(whole).to(communication_device()))
    return torch.stack(squares).sum().sqrt()


def _sum_of_squares(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    # A complex number counts with both parts.
    parts = [torch.view_as_real(each) if each.is_complex() else each for each in gradients]
    # A bf16 sum of squares would lose all but 8 bits.
    wide = reduce(torch.promote_types, [part.dtype for part in parts], torch.float32)
    return torch.stack([torch.linalg.vector_norm(part, dtype=wide) ** 2 for part in parts]).sum()
