"""Other systems behind the same step: what they share.

These engines are not the lesson but what it is measured against. Each runs somebody else's code as its users run it,
and only says where the model's state lies in it: `holdings`, and `_owned` for checkpoints in our format. A system's
further options have the names that it gives them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines.agreement import check_same_layouts, start_from_rank_0
from zerolab.engines.arguments import Explained
from zerolab.engines.checkpoint import Checkpoints
from zerolab.engines.checks import check_fits, check_optimizer, check_options
from zerolab.engines.declared import granule_of
from zerolab.engines.engine import LossFunction
from zerolab.engines.holdings import Holding
from zerolab.engines.optimizer_state import Owned, Piece, local, whole
from zerolab.engines.partition import FlatLayout, ParamGroups, find_units, groups_of, partition
from zerolab.engines.precision import compute_dtype, make_scaler
from zerolab.names import ROOT
from zerolab.runtime.observers import tell, tell_made, tell_updated, then

# Refused, not ignored: with an option that does nothing, a comparison would not compare what it says.
OWN_OPTIONS = ("overlap", "offload", "reduce_dtype", "prefetch", "release_after_forward", "replicate")


# Pictures ask every engine for `flats[i].layout`; here a flat has nothing else.
class PlannedFlat(NamedTuple):
    """The layout of a flat without its tensors, which another system lays out in its own way."""

    layout: FlatLayout


@dataclass(slots=True)
class Turn:
    """Where a loop stands between forwards and backwards."""

    updates: bool = True  # but within `accumulate`
    has_forward: bool = False  # since the last backward
    reduces: bool = False  # whether one of them was outside `accumulate`, where torch's DDP decides
    has_mean: bool = False  # a backward has brought the mean gradients of this step

    def forward(self) -> None:
        """A forward begins, which may be an evaluation: reentrant checkpointing runs without gradients, too."""
        self.has_forward, self.reduces = True, self.reduces or self.updates


class Native(Explained, Checkpoints):
    """Trains `model` on all ranks of the default process group with another system; subclasses say which.

    As with `Engine`, all ranks start from rank 0's parameters and buffers, buffers stay local, and gradients are means.
    A loop of your own calls `engine.model`; some systems put a wrapper around `engine.module`. Options of our own
    engines that a system does not have are refused, with its name for the same thing where there is one.

    Args:
        model: the module, the same on every rank.
        optimizer_cls: an element-wise torch optimizer's class.
        units: names of the modules that travel as one; None finds the blocks (`partition.find_units`).
        param_groups: pairs of a test (of a parameter's name and the parameter) and optimizer keywords.
        precision: "fp32", or "bf16" or "fp16" where the system keeps fp32 master weights. In fp16 `training_step`
            scales the loss; in a loop of your own `engine.backward(engine.scaler.scale(loss))` does.
        **optimizer_keywords: for the optimizer, such as `lr=1e-3`.

    Raises:
        TypeError: `model` is not a module, `optimizer_cls` not an optimizer class, or it does not know a keyword.
        ValueError: nothing to train, a precision or option that the system lacks, or ranks whose models differ.
    """

    stage: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]] = ("fp32",)
    instead: ClassVar[Mapping[str, str]] = {}  # the system's own names for options of our engines
    cannot: ClassVar[tuple[str, ...]] = ()  # what it cannot train, in the words of `check_fits`
    offload: ClassVar[bool] = False  # whether the optimizer updates copies in main memory
    in_turn: ClassVar[bool] = False  # whether each backward needs a forward since the one before it
    once: ClassVar[bool] = False  # whether of two backwards outside `accumulate` a step would use only the last
    module: nn.Module

    @then(tell_made)
    def __init__(
        self,
        model: nn.Module,
        optimizer_cls: type,
        *,
        units: list[str] | None = None,
        param_groups: ParamGroups = (),
        precision: str = "fp32",
        **optimizer_keywords: Any,
    ) -> None:
        # Before the optimizer's check, which would call an engine's option an unknown keyword.
        self._refuse_own_options(optimizer_keywords)
        check_optimizer(optimizer_cls, optimizer_keywords)
        if granule_of(optimizer_cls) > 1:
            name = optimizer_cls.__name__
            raise ValueError(f"{self.stage}'s shards begin within blocks of {name}: use it in ddp, zero1, zero2, zero3")
        check_options(optimizer_cls, units, param_groups)
        self.rank, self.world_size, self.precision = dist.get_rank(), dist.get_world_size(), precision
        self._dtype = compute_dtype(precision)
        if precision not in self.precisions:
            raise ValueError(f"{self.stage} has no {precision} with fp32 masters: choose {', '.join(self.precisions)}")
        # For the names in pictures: the system shards in its own way.
        layouts = partition(model, self.world_size, units)
        check_same_layouts(layouts)
        if all(layout.frozen for layout in layouts):
            raise ValueError(f"all parameters of {type(model).__name__} are frozen: nothing to train")
        self.flats = [PlannedFlat(layout) for layout in layouts]
        self.units = [unit for unit in (find_units(model) if units is None else units) if unit != ROOT]
        check_fits(self.stage, model, self.units, layouts, self.cannot)
        # Where a parameter would lie in the flats of our own engines: pictures and figures speak of those.
        self._slots = {slot.name: (layout.name, slot) for layout in layouts for slot in layout.slots}
        # The keys of the module as the learner wrote it: wrappers add prefixes to them.
        self._shapes = {key: value.shape for key, value in model.state_dict().items()}
        # Now, while parameters have their own names and shapes: a system may shard or flatten them, or wrap the module.
        self._layouts = [flat for flat in partition(model, self.world_size, units, param_groups) if not flat.frozen]
        for parameter in model.parameters():  # not every system does it, and to be compared all must start alike
            dist.broadcast(parameter.detach(), src=0)
        start_from_rank_0(model)
        # Set before wrapping: a system may return another module, and checkpoints are of this one.
        self.module = model
        self.scaler = make_scaler(precision, next(model.parameters()).device)
        self.model: Any = self._wrap(model)
        turn = self._turn = Turn()  # a hook with `self` would be a circle, which keeps memory after the engine is gone
        model.register_forward_pre_hook(lambda *_: turn.forward())
        self.optimizer: Any = self._make_optimizer(optimizer_cls, param_groups, optimizer_keywords)

    def _refuse_own_options(self, keywords: dict[str, Any]) -> None:
        """Raises ValueError for an option of our engines that this system has under another name, or not at all."""
        # It is the default of our engines, and these systems overlap anyway.
        if keywords.get("overlap") is True and "overlap" not in self.instead:
            del keywords["overlap"]
        for option in OWN_OPTIONS:
            if option in keywords:
                remedy = f"use {self.instead[option]}" if option in self.instead else "leave it out"
                raise ValueError(f"{self.stage} cannot take {option}={keywords[option]!r}: {remedy}")

    # What a system overrides.

    def _wrap(self, model: nn.Module) -> nn.Module:
        """Hands the module to the system; returns what is to be called instead. It may have a scaler of its own."""
        raise NotImplementedError

    def holdings(self, flats: Collection[str] | None = None) -> Iterator[Holding]:
        """What this rank holds right now, read from the system's own tensors; of some flats without optimizer state."""
        names = {name for name, (flat, _) in self._slots.items() if flats is None or flat in flats}
        yield from self._held_parameters(names)
        if flats is None:
            yield from self._held_state()

    def _held_parameters(self, names: Collection[str]) -> Iterator[Holding]:
        """Parameters of these names and their gradients; by default whole."""
        for name, parameter in self.module.named_parameters():
            if name not in names:
                continue
            whole_of_it = [Piece(name, 0, 0, parameter.numel())]
            yield from self._held("parameters", parameter, whole_of_it)
            yield from self._held("gradients", parameter.grad, whole_of_it)

    def _no_sync(self, until: ExitStack) -> None:
        """Has the system reduce no gradients until the stack unwinds; by default the wrapper has a context for it."""
        until.enter_context(self.model.no_sync())

    def _owned(self) -> Iterator[Owned]:
        """What this rank's optimizer updates; by default whole parameters."""
        for name, parameter in self._trained_parameters():
            yield Owned(parameter, [Piece(name, 0, 0, parameter.numel())])

    def _make_optimizer(self, optimizer_cls: type, param_groups: ParamGroups, keywords: dict[str, Any]) -> Any:
        return optimizer_cls(self._groups(param_groups), **keywords)

    # The step.

    def training_step(self, inputs: Any, targets: Any, loss_fn: LossFunction) -> torch.Tensor:
        """One step on this rank's batch, as `Engine.training_step`: a mapping of inputs becomes keywords."""
        outputs = self.model(**inputs) if isinstance(inputs, Mapping) else self.model(inputs)
        loss = loss_fn(outputs, targets)
        self.backward(self.scaler.scale(loss))  # the loss itself, but in fp16
        self.step()
        tell(lambda observer: observer.trained(loss))
        return loss.detach()

    def backward(self, loss: torch.Tensor) -> None:
        """Runs autograd; the system communicates meanwhile.

        Raises:
            RuntimeError: an order of forwards and backwards in which the system would lose gradients without a word.
        """
        self._check_turn()
        self._differentiate(loss)
        self._turn.has_forward = self._turn.reduces = False
        self._turn.has_mean = self._turn.updates

    def _check_turn(self) -> None:
        if self.in_turn and not self._turn.has_forward:
            raise RuntimeError(
                f"{self.stage}: no forward of engine.model since the last backward(), and each prepares only one: run "
                "each micro-batch's forward right before its backward, or add the losses up, and call backward() once"
            )
        if self.once and self._turn.has_mean:
            raise RuntimeError(
                f"{self.stage}: a second backward() before step(), which would replace the first one's gradients: wrap "
                "all but the last one in engine.accumulate(), skip a batch before its backward, and call engine.step()"
            )

    def _differentiate(self, loss: torch.Tensor) -> None:
        loss.backward()

    @then(tell_updated)
    def step(self) -> None:
        """Updates what this rank owns, and clears the gradients; does neither within `accumulate`."""
        if self._turn.updates:
            tell(lambda observer: observer.updating())
            self._turn.has_mean = False
        self._update()

    def _update(self) -> None:
        if self._turn.updates:
            self.scaler.step(self.optimizer)  # in fp16 not after an overflow
            self.scaler.update()
            # To None, as in our own engines: gradients kept as zeros would show in every picture.
            self.optimizer.zero_grad()

    def zero_grad(self) -> None:
        """Drops the gradients since the last step, those of micro-batches too."""
        self.optimizer.zero_grad()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """A context in which gradients add up and nothing is updated: for all micro-batches of a step but the last.

        Forward and backward both belong inside. The gradients are sums over micro-batches.
        """
        with ExitStack() as until:
            self._turn.updates = False
            until.callback(setattr, self._turn, "updates", True)
            self._no_sync(until)
            yield

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients so that their norm, over all ranks, is at most `max_norm`; returns the norm before."""
        # Correct where every rank has all gradients, and with DTensors, which know that they are shards.
        # Not the module's parameters: those of FSDP2's root are whole, and others, after an evaluation.
        updated = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return whole(nn.utils.clip_grad_norm_(updated, max_norm))

    def _whole_model(self) -> Iterable[tuple[str, torch.Tensor]]:
        return ((key, whole(value.detach())) for key, value in self.module.state_dict().items())

    def _load(self, state: dict[str, torch.Tensor]) -> None:
        self.module.load_state_dict(state)

    def save_sharded(self, *_: Any, **__: Any) -> Any:
        """Raises NotImplementedError, with the remedy: only our own stages write, and read, what lies in flats."""
        raise NotImplementedError(
            f"{self.stage} has no sharded checkpoints here: engine.save and engine.load write and read one whole file, "
            "and torch.distributed.checkpoint saves the shards of a model of torch's"
        )

    load_sharded = save_sharded

    # For the systems' own classes.

    def _trained_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """What the optimizer updates, by name."""
        return ((name, parameter) for name, parameter in self.module.named_parameters() if parameter.requires_grad)

    def _groups(self, param_groups: ParamGroups) -> list[dict[str, Any]]:
        """The optimizer's groups: the parameters that each claims, and last those that none claims."""
        claimed = {slot.name: layout.group for layout in self._layouts for slot in layout.slots}
        # `get`: FSDP1's flat parameters have names of their own.
        return groups_of(((claimed.get(name), each) for name, each in self._trained_parameters()), param_groups)

    def _held(
        self, category: str, tensor: torch.Tensor | None, pieces: Iterable[Piece], begin: int = 0
    ) -> Iterator[Holding]:
        """The pieces of parameters in `tensor`, which begins at element `begin` of what the pieces were cut for."""
        if tensor is None:
            return
        for name, place, start, numel in pieces:
            first, last = max(place, begin), min(place + numel, begin + tensor.numel())
            if last > first or (last == first and not numel):
                flat, slot = self._slots[name]
                offset = slot.start + start - place
                yield Holding(category, flat, (offset + first, offset + last), tensor)

    def _held_state(self) -> Iterator[Holding]:
        """The optimizer's entries for what this rank updates; a step counter covers no elements."""
        state = self._state()
        for updated, pieces, _ in self._owned():
            for value in map(local, state.get(updated, {}).values()):
                if isinstance(value, torch.Tensor):
                    covered = pieces if value.dim() else [Piece(piece.name, 0, piece.start, 0) for piece in pieces[:1]]
                    yield from self._held("optimizer_state", value, covered)
