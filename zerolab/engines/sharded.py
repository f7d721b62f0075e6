"""Sharded checkpoints: each rank writes what it owns, and reads what it will own.

The whole model and the optimizer's state, 12 bytes a parameter under Adam, never pass through one rank: a save takes
an Nth of the time and needs no memory but the shard's. `saving` writes the files and `stored` reads them; here is what
goes into them, and what is done with what comes out. By their keys they are what FSDP2 saves and loads:
`{"model": {key: tensor}, "optim": {"state": {parameter: {key: tensor}}, "param_groups": [...]}}`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from zerolab.engines.agreement import agree
from zerolab.engines.boxes import Elements, Place
from zerolab.engines.checkpoint import FlatCheckpoints, check_state
from zerolab.engines.collectives import all_gather
from zerolab.engines.flat import Flat, Presence
from zerolab.engines.optimizer_state import Piece, is_elementwise, pieces_within, single

if TYPE_CHECKING:  # imported where they are used: torch needs a while for its own part of them
    from zerolab.engines.saving import Saving

Span = tuple[int, int]
Keys = defaultdict[int, list[str]]


class ShardedCheckpoints(FlatCheckpoints):
    """Saves and loads an engine's state without any rank having it whole."""

    rank: int
    _saving: "Saving | None" = None  # the last one

    def save_sharded(self, run: str | Path, step: int, *, background: bool = False) -> "Saving":
        """Writes what this rank owns of model and optimizer to `run/step-N`; the ranks together write all. Collective.

        A checkpoint that is not whole is never found under that name (see `zerolab.latest_checkpoint`); what killed
        saves have left in `run` is removed, so the folder belongs to one engine. A file system that all ranks see.

        Args:
            run: the folder of this training's checkpoints; it is made if its own folder exists.
            step: the number of steps that are done.
            background: copy the state and return; a thread writes the copy. `wait()` of what is returned, and the next
                save, wait for it and raise what went wrong.

        Raises:
            RuntimeError: a rank could not write its part; or the earlier save in the background failed.
            ValueError: the step is saved already, or the folder cannot be written to.
        """
        from zerolab.engines.saving import Saving

        if self._saving is not None:
            self._saving.wait()
        state = dict(self._to_save())
        self._saving = saving = Saving(run, step, state)
        saving.prepare()
        if background:
            saving.start()
        else:
            saving.write()
            saving.wait()
        return saving

    def load_sharded(self, directory: str | Path) -> None:
        """Takes this rank's part of a checkpoint: of `save_sharded` by any stage on any N, or FSDP2's. Collective.

        All of it is checked before any is loaded, but for damage within a file, which only reading it can show.

        Raises:
            ValueError: there is no whole checkpoint there, it is damaged, or of another model or optimizer.
        """
        from zerolab.engines.stored import opened

        stored, tree = opened(directory, self._trained_shapes())
        check_state(tree["model"], self._shapes)
        scale = tree.get("scaler") if self.scaler.is_enabled() else None
        if scale is not None and not (isinstance(scale, dict) and self.scaler.state_dict().keys() <= scale.keys()):
            raise ValueError(f"'scaler' in {directory} is not what a GradScaler's state_dict() gives: save that")
        self._check_optimizer_state(tree["optim"])
        self._load_optimizer(tree["optim"], tree["model"])  # its numbers; of the rest zeros, until it is read
        error = ""
        try:
            self._read(stored)
        except ValueError as problem:
            error = f"{problem}; the engine is half loaded, so load one before you train on"
        agree(error, ValueError)
        for flat in self.flats:
            _spread(flat)
        if scale is not None:
            self.scaler.load_state_dict(scale)

    def _of_flat(self, flat: Flat, span: Span, keys: Keys, state: Mapping[Any, Any]) -> Iterator[tuple[Place, Any]]:
        """What this rank has in the elements `span` of a flat: of parameters and of their state in the optimizer.

        A number that the optimizer keeps for a whole parameter comes with the parameter's beginning.
        """
        shapes = {slot.name: slot.shape for slot in flat.layout.slots}
        ids = {slot.name: id(parameter) for slot, parameter in flat.members()}
        for piece in _pieces(flat, flat.span, span):
            for key in keys[ids[piece.name]]:
                yield ("model", key), _cut(flat.owned, piece, shapes[piece.name])
        for updated, where in flat.updated():
            for piece, (key, value) in product(_pieces(flat, where, span), state.get(updated, {}).items()):
                place = "optim", "state", piece.name, key
                if is_elementwise(key, value, updated.shape):
                    yield place, _cut(value, piece, shapes[piece.name])
                elif not piece.start:
                    yield place, single(value, key, piece.name)

    def _keys(self) -> Keys:
        """The keys in the model's state of each parameter, by its id; one that is tied has several."""
        keys: Keys = defaultdict(list)
        for key, entry in self._entries().items():
            keys[id(entry)].append(key)
        return keys

    def _to_save(self) -> Iterator[tuple[Place, Any]]:
        """What this rank writes. Where all have the same, each writes its Nth part; numbers, who has the beginning."""
        keys = self._keys()
        for flat in self.flats:
            flat.settle()
            flat.take_over()
            yield from self._of_flat(flat, flat.layout.span(self.rank), keys, self._state())
        if self.rank == 0:
            yield from self._of_all_ranks()

    def _of_all_ranks(self) -> Iterator[tuple[Place, Any]]:
        """What one rank writes for all: buffers, empty parameters, the groups' keywords, the loss scale."""
        shapes = self._shapes_by_id()
        for key, entry in self._entries().items():
            if id(entry) not in shapes:
                yield ("model", key), entry
            elif not shapes[id(entry)].numel():
                yield ("model", key), torch.empty(shapes[id(entry)], dtype=entry.dtype)
        groups = zip(self.optimizer.param_groups, self._group_names(), strict=True)
        for number, (group, names) in enumerate(groups):
            for key, value in {**group, "params": names}.items():
                yield ("optim", "param_groups", number, key), tree_map(_plain, value)
        for key, value in self.scaler.state_dict().items():  # empty but in fp16
            yield ("scaler", key), value

    @torch.no_grad()
    def _read(self, stored: Any) -> None:
        """Reads what this rank owns."""
        keys = self._keys()
        for flat in self.flats:
            flat.settle()
            state = {updated: kept for updated, _ in flat.updated() if (kept := self._state().get(updated))}
            for place, mine in self._of_flat(flat, flat.span, keys, state):
                if isinstance(mine, Elements) and stored.has(place):  # without a gradient there is no state
                    stored.fill(place, mine)
            self._state().update(state)  # copies, of a state that is kept in fewer bits
        parameters = self._shapes_by_id()
        for key, entry in self._entries().items():
            if id(entry) not in parameters:  # a buffer: each rank has the whole
                entry.copy_(stored.read(("model", key)))


def _pieces(flat: Flat, where: Span, span: Span) -> Iterator[Piece]:
    """The pieces of parameters in a tensor that lies at `where` in the flat, as far as they are within `span`."""
    first, last = max(where[0], span[0]), min(where[1], span[1])
    slots = [(slot.name, slot.shape.numel()) for slot in flat.layout.slots]
    for piece in pieces_within(slots, first, last):
        yield piece._replace(place=piece.place + first - where[0])


def _cut(value: torch.Tensor, piece: Piece, shape: torch.Size) -> Elements:
    return Elements(shape, piece.start, value.detach().view(-1)[piece.place : piece.place + piece.numel])


def _plain(value: Any) -> Any:
    """A number of numpy's, such as a schedule's, as Python's own: whoever reads the file loads no other classes."""
    return value.item() if hasattr(value, "item") and not isinstance(value, torch.Tensor) else value


@torch.no_grad()
def _spread(flat: Flat) -> None:
    """Brings what was read from what the optimizer updates to the shard, and where parameters are whole, to all."""
    flat.shard.copy_(flat.owned)
    if flat.is_sharded and flat.presence is not Presence.RELEASED:
        flat.part(flat.whole).copy_(flat.shard)
        all_gather(flat.whole, name=flat.layout.name, sizes=flat.layout.sizes).wait()
