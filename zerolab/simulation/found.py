"""What `fit` found: a table of what each stage needs, and what follows from it."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from zerolab import theory
from zerolab.names import check_count, check_known
from zerolab.recording.events import count as counted
from zerolab.simulation import own
from zerolab.simulation.fake import SIMULATED
from zerolab.simulation.needs import SIZES, Cell, Question, check_options, effort, in_words, name_of, options_of, row_of
from zerolab.simulation.unlike_plan import unlike_plan
from zerolab.tables import Table, Value
from zerolab.theory import forms, systems
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.configs import settings

Row = str | None
"""A stage, checkpointing or precision of the table; None takes any."""
MOST = 2**20  # rows or tokens; no greater answer is looked for
POWERS = tuple(1 << power for power in range(21))
DIVIDED = ("zero3", *SIMULATED)  # stages of whose parameters a rank keeps a part
GPUS = POWERS[:13]
PADDED = 20  # bytes of state of an element at most, padding included: in bf16 2 + 2 + 12, and 4 of an fp32 gradient


class Fit(Table):
    """What `fit` found: a table with a row for each stage, precision and checkpointing, and what follows from it.

    `needs` is the sum of the terms before it (`needs.TERMS`), in bytes; `lacks` what is missing of `usable`, which is
    the GPU's memory less CUDA's own; `first` what to change first, None where `answer` says what helps; `blocks` says
    which modules travel as one; `notes` says what is missing, and what `theory.plan` counts otherwise.
    """

    def __init__(self, question: Question, cells: Sequence[Cell], notes: Sequence[str]) -> None:
        self.question, self.cells, self.usable = question, list(cells), question.usable
        self._others: list[Cell] = []  # what was asked besides, in other precisions and checkpointings
        self.blocks = own.described(question.model(), question.units)
        why = dict.fromkeys(str(cell.seen["why"]) for cell in cells if cell.recording is None)
        self.notes = [*notes, *unlike_plan(question, (cell.stage for cell in cells))]
        self.notes += [f"no activations: {text}; below is the state alone" for text in why]
        rows = [
            row_of(cell, self.usable, self._first(cell), several=len({c.precision for c in cells}) > 1)
            for cell in cells
        ]
        super().__init__(rows, "\n".join([self._title(), *self.notes]), times=True, sizes=SIZES)

    @property
    def fitting(self) -> list[Cell]:
        """What fits, in the order in which to try it: cheapest first."""
        return sorted((cell for cell in self.cells if self._fits(cell)), key=effort)

    @property
    def answer(self) -> str:
        """One sentence: what fits and costs least, or what to change."""
        if any(cell.recording is None for cell in self.cells):
            return self.notes[-1]
        if self.fitting:
            cell = self.fitting[0]
            return (
                f"Fits: {in_words(cell)}, which needs {cell.needs / 1e9:.3g} GB of the {self.usable / 1e9:.3g} GB that "
                "CUDA leaves."
            )
        return f"No: {self._remedy()}"

    @property
    def reserved(self) -> Table:
        """What torch's caching allocator would reserve for each row, by its rules (`theory.allocator`).

        As it is, and with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; on a GPU it is what
        `torch.cuda.max_memory_reserved` says. Every tensor lies on one stream here, and is freed as soon as nothing
        needs it: streams of their own for communication add to it.
        """
        rows: list[dict[str, Value]] = []
        for cell in self.cells:
            found = [allocator.peak_reserved for allocator in cell.seen.get("allocators", ())]
            as_it_is, expandable = found or (None, None)
            row = {"stage": cell.stage, "precision": cell.precision, "checkpointing": cell.checkpointing}
            rows.append(row | {"needs": cell.needs, "reserved": as_it_is, "in expandable segments": expandable})
        return Table(rows, self._title(), sizes=["needs", "reserved", "in expandable segments"])

    def cell(self, stage: Row = None, checkpointing: Row = None, precision: Row = None) -> Cell:
        """One row as it was simulated; by default the first that fits, or the one that needs least.

        Raises ValueError for a stage, checkpointing or precision that the table does not have, or not together.
        """
        chosen = self.cells
        for what, name in (("stage", stage), ("checkpointing", checkpointing), ("precision", precision)):
            if name is not None:
                check_known(f"{what} of this table", name, list(dict.fromkeys(getattr(c, what) for c in chosen)))
                chosen = [cell for cell in chosen if getattr(cell, what) == name]
        fitting = [cell for cell in self.fitting if cell in chosen]
        return fitting[0] if fitting else min(chosen, key=lambda cell: cell.needs)

    def over(
        self, name: str, values: Iterable[Any], stage: Row = None, checkpointing: Row = None, precision: Row = None
    ) -> Table:
        """The same row with something changed: one row for each value.

        Args:
            name: "rows", "length", "world_size", "units" (a class, or a list of names), "micro_batches", "precision",
                "checkpointing", or an option of the engine, such as "reshard_after_forward".
            values: what to put in its place.
            stage: of the table; None takes what `cell` takes, as for `checkpointing` and `precision`.
            checkpointing: of the table.
            precision: of the table.
        """
        chosen = self.cell(stage, checkpointing, precision)
        cells = [(value, self._changed(chosen, name, value)) for value in values]
        rows = [{name: name_of(value)} | row_of(cell, self.usable, None, several=False) for value, cell in cells]
        asked = [replace(self.question, **self._change(chosen, name, value)) for value, _ in cells]
        notes = dict.fromkeys(note for each in asked for note in unlike_plan(each, [chosen.stage]))
        return Table(rows, "\n".join([f"{in_words(chosen)}, by {name}", *notes]), times=True, sizes=SIZES)

    def most(self, name: str = "rows", stage: Row = None, checkpointing: Row = None, precision: Row = None) -> int:
        """The most "rows" per rank, or the greatest "length" of a row, that fits, up to 2**20; 0 if not even one does.

        Raises ValueError for another name, a length of rows without tokens, or if the model could not be run as shapes.
        """
        check_known("size to enlarge", name, ("rows", "length"))
        chosen = self.cell(stage, checkpointing, precision)
        if chosen.recording is None:
            raise ValueError(f"what fits is unknown: {self.notes[-1]}")
        return self._most(chosen, name)

    def _most(self, chosen: Cell, name: str, **same: Any) -> int:
        """The greatest value that fits, where all that is in `same` is changed with it."""

        def fails(value: int) -> bool:
            try:
                return not self._fits(self._changed(chosen, name, value, **same))
            except own.TooLong:
                return True

        # Twice as many as fitted, until they do not; then in between.
        high = next((power for power in POWERS if fails(power)), None)
        if high is None:
            return MOST
        low = high // 2
        return low + bisect_left(range(low + 1, high), True, key=fails)

    def least_gpus(self, stage: Row = None, checkpointing: Row = None, precision: Row = None) -> int | None:
        """The fewest GPUs on which it fits with the same rows per rank: a power of two, under hsdp of whole nodes.

        None if 4096 GPUs do not help, or 4096 nodes.
        """
        return self._least_gpus(self.cell(stage, checkpointing, precision))

    def _least_gpus(self, chosen: Cell, **same: Any) -> int | None:
        """The fewest GPUs on which it fits, where all that is in `same` is changed with them."""
        node, needs = self.question.hardware.gpus_per_node, []
        for count in [node * nodes for nodes in GPUS[1:]] if chosen.stage == "hsdp" else GPUS:
            try:
                cell = self._changed(chosen, "world_size", count, **same)
            except ValueError:  # too few for `reshard_after_forward`, say
                continue
            if self._fits(cell):
                return count
            needs.append(cell.needs)
            # It is constant + sharded / N + padding: all that twice as many would save, and twice as many again, is at
            # most what this doubling saved, and would have but for padding. The first may have begun to communicate.
            units = cell.recording.units if cell.recording is not None else ()
            padding = PADDED * sum(unit.padded - unit.numel for unit in units)
            if len(needs) > 2 and 2 * needs[-1] - needs[-2] - 2 * padding > self.usable:
                return None
        return None

    def units(self, stage: Row = None, precision: Row = None) -> Table:
        """What each unit holds: parameters, whole and one rank's; and what its forward keeps, by checkpointing."""
        first = self.cell(stage, precision=precision)
        alike = [c for c in self.cells if (c.stage, c.precision) == (first.stage, first.precision)]
        word, is_divided = theory.BYTES_PER_PARAMETER[first.precision]["parameters"], first.stage in DIVIDED
        of_shards = forms.FP32_BYTES if first.stage in SIMULATED else word  # FSDP2's are its masters
        rows = []
        for flat in self.question.flats(first.stage):
            ones = flat.shard_numel * of_shards if is_divided else flat.numel * word
            kept = {f"kept, {c.checkpointing}": c.seen["kept"].get(flat.unit) for c in alike if c.recording}
            rows.append({"unit": flat.name, "whole": flat.numel * word, "one rank's": ones, **kept})
        return Table(rows, f"bytes of each unit under {first.stage} in {first.precision}", sizes=list(rows[0])[1:])

    def modules(self, count: int = 10, stage: Row = None, checkpointing: Row = None, precision: Row = None) -> Table:
        """The modules whose forward keeps the most activations for backward, innermost modules first."""
        count, cell = check_count("number of modules", count), self.cell(stage, checkpointing, precision)
        kept: dict[str, int] = cell.seen["kept"]
        leaves = {name: size for name, size in kept.items() if not any(each.startswith(f"{name}.") for each in kept)}
        leaves.pop("root", None)
        largest = sorted(leaves.items(), key=lambda pair: -pair[1])[:count]
        return Table(
            [{"module": n, "kept": s} for n, s in largest], f"activations left by {in_words(cell)}", sizes=["kept"]
        )

    def offload(self) -> Table:
        """The rows if the optimizer were in main memory: what a GPU then needs, and each rank of its host."""
        rows: list[dict[str, Any]] = [
            {
                "stage": cell.stage,
                "precision": cell.precision,
                "checkpointing": cell.checkpointing,
                "needs": cell.needs,
                "with offload": cell.with_offload,
                "saves": cell.needs - cell.with_offload,
                "in main memory": cell.in_main_memory,
            }
            for cell in self.cells
        ]
        title = "optimizer in main memory; all bytes are one rank's, also those in main memory"
        return Table(rows, title, sizes=["needs", "with offload", "saves", "in main memory"])

    def settings(
        self, stage: Row = None, checkpointing: Row = None, precision: Row = None, *, offload: bool = False
    ) -> dict[str, Any]:
        """The same in FSDP2, Accelerate, DeepSpeed and Megatron to paste, as `theory.settings` returns it."""
        cell, question = self.cell(stage, checkpointing, precision), self.question
        options = dict(question.options)
        # What FSDP2 keeps gathered until backward is its stage 2; a number is the ranks of a second shard.
        reshard = options.pop("reshard_after_forward", None)
        form = "zero2" if reshard is False else systems.FORMS.get(cell.stage, cell.stage)
        is_known, shards = cell.checkpointing in CHECKPOINTING, question.shards(cell.stage)
        found = settings(
            form,
            cell.precision,
            question.own.rows(question.rows),
            cell.checkpointing if is_known else "none",
            offload=offload,
            mesh=(question.world_size // shards, shards) if cell.stage == "hsdp" else None,
            second_shard=None if isinstance(reshard, bool) else reshard or None,
            micro_batches=question.micro_batches,
        )
        more = [found["not covered"]] if found["not covered"] else []
        if cell.stage in SIMULATED and question.micro_batches > 1 and not question.sync_each_batch:
            more.append(
                "Whole gradients until the last micro-batch, which the table counts: call "
                "model.set_requires_gradient_sync(False) before all but the last, and (True) before the last, and "
                "leave out Accelerate's sync_each_batch=True. Otherwise FSDP2 reduces each: ask fit again with "
                "sync_each_batch=True."
            )
        if not is_known:
            more.append(f"Checkpointing {cell.checkpointing}: apply it to the blocks yourself, as you gave it to fit.")
        more += [f"The option {name}={name_of(value)} of fit: no line here sets it." for name, value in options.items()]
        found["not covered"] = "\n".join(more) or None
        if found["fsdp2"]:
            if reshard:  # the engine gives it to the root as well, which FSDP2 by default keeps gathered
                root = f"fully_shard(model, reshard_after_forward={reshard}, "
                found["fsdp2"] = found["fsdp2"].replace("fully_shard(model, ", root)
            self._name_blocks(found)
        return found

    def _name_blocks(self, found: dict[str, Any]) -> None:
        """Adds to settings which modules are the blocks: those of a class, where no other module is of it."""
        modules = dict(self.question.model().named_modules())
        names = list(self.question.units)
        kinds = sorted({type(modules[name]).__name__ for name in names})
        is_theirs = {name for name, module in modules.items() if type(module).__name__ in kinds} == set(names)
        listed = (
            f"model.modules() if type(m).__name__ in {kinds}" if is_theirs else f"map(model.get_submodule, {names})"
        )
        found["fsdp2"] = f"blocks = [m for m in {listed}]\n{found['fsdp2']}"
        if found["accelerate"] and is_theirs and names:  # it knows the blocks of Hugging Face's models alone
            wraps = "TRANSFORMER_BASED_WRAP\n"
            named = f"{wraps}  fsdp_transformer_layer_cls_to_wrap: {','.join(kinds)}\n"
            found["accelerate"] = found["accelerate"].replace(wraps, named)
        elif found["accelerate"] and names:
            also = "Accelerate wraps classes, and other modules are of a block's: give the blocks one of their own."
            found["not covered"] = f"{found['not covered']}\n{also}" if found["not covered"] else also

    def _changed(self, cell: Cell, name: str, value: Any, **same: Any) -> Cell:
        case: dict[str, Any] = {"stage": cell.stage, "precision": cell.precision, "checkpointing": cell.policy}
        if name in ("precision", "checkpointing"):
            case[name] = value
            cells, wanted = [*self.cells, *self._others], [*case.values()]
            if not (known := [each for each in cells if [each.stage, each.precision, each.policy] == wanted]):
                known = [self.question.cell(**case)]
                self._others += known
            return known[0]
        return replace(self.question, **self._change(cell, name, value), **same).cell(**case)

    def _change(self, cell: Cell, name: str, value: Any) -> dict[str, Any]:
        """The fields of the question that differ."""
        if name in ("precision", "checkpointing"):
            return {}
        if name == "units":
            return {"units": own.blocks_of(self.question.model(), value)}
        if name in Question.COUNTS:
            return {name: check_count(Question.COUNTS[name], value)}
        check_options(f"option of {cell.stage}", [name], options_of(cell.stage))
        return {"options": {**self.question.options, name: value}}

    def _fits(self, cell: Cell) -> bool:
        return cell.recording is not None and cell.needs <= self.usable

    def _first(self, cell: Cell) -> str | None:
        """What to change first in a row that lacks memory: one thing, if that is enough, otherwise two.

        None where nothing in the table fits: `answer` says what would.
        """
        if self._fits(cell) or cell.recording is None:
            return None
        alike = [other for other in self.fitting if other.precision == cell.precision]
        one = [c for c in alike if (c.stage == cell.stage) != (c.checkpointing == cell.checkpointing)]
        for other in one or alike:
            parts = [other.stage] * (other.stage != cell.stage)
            parts += [f"checkpointing {other.checkpointing}"] * (other.checkpointing != cell.checkpointing)
            return ", ".join(parts)
        return None

    def _remedy(self) -> str:
        """What helps where nothing fits: fewer rows, the optimizer in main memory, more GPUs."""
        cell = min(self.cells, key=lambda each: each.needs)
        lacks = f"even {in_words(cell)} lacks {(cell.needs - self.usable) / 1e9:.3g} GB."
        rows, micro_batches = self.question.own.rows(self.question.rows), self.question.micro_batches
        # From the second micro-batch on the gradients of the first are there, so with one more rows might fit.
        added_up = max(2, micro_batches)
        if rows > 1 and (most := self._most(cell, "rows", micro_batches=added_up)):
            # As many rows a step as were asked for, so not with any number of them at once.
            most = next(count for count in range(most, 0, -1) if rows * micro_batches % count == 0)
            total = rows * micro_batches // most
            return f"{lacks} It fits with {most} of {rows} rows per rank: add up {total} micro-batches."
        if cell.with_offload <= self.usable:
            return f"{lacks} With the optimizer in main memory it needs {cell.with_offload / 1e9:.3g} GB, and fits."
        if count := self._least_gpus(cell):
            return f"{lacks} It fits on {count} GPUs."
        if rows > 1 and micro_batches == 1 and (most := self._most(cell, "rows")):
            return f"{lacks} It fits with {most} of {rows} rows per rank as a whole step: two micro-batches need more."
        if rows > 1 and (count := self._least_gpus(cell, rows=1, micro_batches=added_up)):
            total = rows * micro_batches
            return f"{lacks} It fits with 1 of {rows} rows per rank on {count} GPUs: add up {total} micro-batches."
        limit = f"{GPUS[-1]} {'nodes' if cell.stage == 'hsdp' else 'GPUs'}"
        others = "take shorter rows, larger GPUs, or divide blocks (tensor parallelism)"
        return f"{lacks} Not even {limit} would help: {others}."

    def _title(self) -> str:
        question = self.question
        rows, length = question.own.rows(question.rows), question.own.length(question.length)
        batch = counted(rows, "row") + (f" of {length} tokens" if length else "")
        least = f"{question.usable / 1e9:.4g} GB usable"
        on = f"{question.world_size} {question.hardware.gpu.name}"
        return f"{question.own.name} on {on}, {least} each; {batch} per rank\nblocks: {self.blocks}"
