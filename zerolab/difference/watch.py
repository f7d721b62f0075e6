"""Takes fingerprints while a training runs, on one rank; nothing is sent, no random number drawn, nothing written to.

Of each step: the parameters before its first forward (and after the last step), buffers, rows of the batches, the loss,
the rank's own gradients where autograd brings whole ones, what the optimizer reads, its settings and its state.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, Self

import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from zerolab import files
from zerolab.difference import fingerprint, places, prints
from zerolab.difference.runs import empty_step
from zerolab.engines.declared import state_of
from zerolab.engines.optimizer_state import COUNTERS, local
from zerolab.recording.dispatch import leave_to_python
from zerolab.recording.info import Membership, membership
from zerolab.recording.passes import BACKWARD, BACKWARD_IN, may_train
from zerolab.recording.patches import once_computed, replace
from zerolab.recording.sources import Sources
from zerolab.recording.updates import hearing_updates
from zerolab.recording.wrappers import has_shapes, is_part, prefix_of, unwrapped
from zerolab.runtime.observers import holders

UNSEEN = "for no forward of a module with parameters was seen: call the model itself where it is trained"
SETTINGS = ("lr", "weight_decay", "momentum", "betas", "eps", "nesterov", "amsgrad", "maximize", "ns_steps")
Step = dict[str, Any]


def all_steps(out: str, fn: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Runs on a rank: `fn`, with the fingerprints of all its steps beside `out`."""
    with Fingerprints(fingerprint.folder_of(out), (1, sys.maxsize)):
        return fn(*args, **keywords)


class Fingerprints:
    """A `with` block, entered by every rank, in which steps `first` to `last` leave their fingerprints in `folder`.

    Args:
        folder: where each rank writes its file, `rank-0.json`; it is made.
        steps: the first and the last, from 1; a step ends with an update.
    """

    def __init__(self, folder: str | os.PathLike[str], steps: tuple[int, int] = (1, 3)) -> None:
        self.folder, (self._first, self._last) = Path(folder), steps
        self._done, self._pid = 0, os.getpid()  # steps so far
        self._steps: list[Step] = []
        self._now: Step | None = None
        self._models: dict[int, tuple[nn.Module, str]] = {}  # the outermost modules, and what is before their names
        self._engines: list[Any] = []  # kept, for at the end they say where the parameters are
        self._about: dict[str, list[Any]] = {}
        self._sharing: set[int] = set()  # ranks that may have this rank's batch, too
        self._thread: int | None = None  # the first in which a model trains
        self._running: list[nn.Module] = []
        self._seen: Callable[[torch.Tensor | None], None] | None = None  # the batch of the forward that runs
        self._keywords: dict[str, Any] = {}  # of the call that begins
        self._updated = self._over = False
        self._updating: list[Any] = []  # the optimizers that are at it: one may call others
        self._scale, self._sources, self._member = 1.0, Sources(), Membership()
        self._reasons, self._casts = set[str](), list[str]()  # the second: to what autocast casts in this forward
        self._stack, self._outermost = ExitStack(), ExitStack()

    def __enter__(self) -> Self:
        self._member = membership(Membership(int(os.environ.get("RANK", "0"))))  # a script may not have joined yet
        self._file(self._member.rank).unlink(missing_ok=True)  # an earlier run's
        enter, callback = self._stack.enter_context, self._stack.callback
        leave_to_python()
        enter(replace(nn.Module, "__call__", self._called))
        callback(register_module_forward_pre_hook(self._before_forward).remove)
        callback(register_module_forward_hook(self._after_forward, always_call=True).remove)
        # To the end of the block: another thread may be within an update when the last step is over.
        self._outermost.enter_context(hearing_updates(before=self._before_update, after=self._after_update))
        enter(replace(BACKWARD_IN, BACKWARD, self._backward))
        enter(replace(torch.amp.GradScaler, "scale", self._scaled))
        if torch.distributed.is_available():  # FSDP's has a `scale` of its own, and may be made within the block
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            enter(replace(ShardedGradScaler, "scale", self._scaled))
        enter(replace(torch.amp.GradScaler, "step", self._stepped))
        return self

    def __exit__(self, *_: object) -> None:
        if not self._over:
            self._end()
        self._outermost.close()

    def _end(self) -> None:
        self._over = True
        self._stack.close()
        if os.getpid() != self._pid:  # one that the script has forked
            return
        last = self._steps[-1] if self._steps else None
        if last is not None and not (last["updates"] or last["skipped"] or last["rows"]["count"]):
            self._steps.pop()  # an evaluation
        if not self._steps:
            if self._done >= self._first and not self._member.rank:
                print(f"zerolab: no fingerprints were taken, {UNSEEN}", file=sys.stderr)
            return
        if self._updated:
            self._steps[-1]["end"] = self._parameters(self._models.values())
        for kind in ("local", "last"):
            for step in self._steps:  # twelve digits are more than any rounding that is asked for
                step[kind] = {name: [float(f"{x:.12g}") for x in signed] for name, signed in step[kind].items()}
        contents = {
            "fingerprints": fingerprint.VERSION,
            "rank": (rank := self._member.rank),
            "world_size": self._member.world_size,
            "parameters": self._about,
            "splits": sorted(self._reasons),
            "steps": self._steps,
        }
        try:
            self.folder.mkdir(exist_ok=True)
            files.write_text(self._file(rank), json.dumps(contents, separators=(",", ":")))
        except (OSError, ValueError) as error:  # the training goes on
            print(f"zerolab: no fingerprints came from rank {rank}: {error}", file=sys.stderr)
        self._remove_older()
        self._models.clear()
        self._engines.clear()

    def _remove_older(self) -> None:
        """Removes what an earlier run of more ranks left."""
        for file in self.folder.glob("rank-*.json") if self._member.rank == 0 else ():
            number = file.stem.removeprefix("rank-")
            if number.isdecimal() and int(number) >= self._member.world_size:
                file.unlink(missing_ok=True)

    def _file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    # The forward.

    def _called(self, original: Callable[..., Any], module: nn.Module, /, *args: Any, **keywords: Any) -> Any:
        if not self._running and self._is_here():
            self._keywords = keywords  # of which torch tells a hook for all modules nothing
        return original(module, *args, **keywords)

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if prints.is_traced():
            return
        trains = may_train(module)
        if get_ident() == self._thread or (trains and self._thread is None):
            self._thread = get_ident()
            self._running.append(module)
            keywords, self._keywords = self._keywords, {}
            if trains:
                self._may_train(module, (inputs, keywords))
        elif trains:
            self._not_seen("training in other threads than the first")

    def _may_train(self, module: nn.Module, batch: Any) -> None:
        if len(self._running) == 1:
            if any(map(is_functorch_wrapped_tensor, module.parameters())):  # it is called with others than its own
                self._not_seen("a forward within torch.func")
                return
            self._begin(module)
            if self._now is not None:
                sees, dropout, self._casts = partial(self._sees, what=fingerprint.BATCH), "dropout" in self._reasons, []
                # Of what is wrapped: Lightning leaves its DDP in evaluation mode.
                self._seen = prints.of_batch(self._now, unwrapped(module), batch, sees, self._casts, dropout=dropout)
        prints.note_casts(self._casts)  # in each module: autocast may begin within the outermost
        model, prefix = self._models.get(id(self._running[0]), (None, ""))
        if self._now is not None and model is not None and unwrapped(model) is module:  # DDP has sent them by now
            for whole, buffer in places.buffers_of(module, prefix):
                if whole.name not in self._now["buffers"]:
                    self._note(self._now["buffers"], [whole], buffer)

    def _begin(self, module: nn.Module) -> None:
        self._member = membership(self._member)
        if self._updated:
            if self._steps:
                self._steps[-1].setdefault("end", self._parameters(self._models.values()))
            self._updated, self._now = False, None
        if self._done == self._last:
            self._end()
            return
        if self._done < self._first - 1:
            return
        if self._now is None:
            self._now = empty_step(self._done + 1)
            self._now["before"] = self._parameters(self._models.values())
            self._steps.append(self._now)
        if has_shapes(module):  # else its forward gives them to it
            self._learn(module)
        self._now["sharing"] = sorted(self._sharing)
        self._line("forward")

    def _learn(self, module: nn.Module) -> None:
        if id(module) in self._models:
            return
        for model in places.trained_within(module):  # the engine says what is there, and by what names
            self._learn(model)
        places.forget_parts(self._models, self._about, self._steps, module)
        known = {id(each) for other, _ in self._models.values() for each in other.parameters()}
        parameters = {name: each for name, each in places.names_of(module).items() if id(each) not in known}
        if not parameters:  # a part of them, called by itself
            return
        prefix = prefix_of(module, self._about)
        self._models[id(module)] = module, prefix
        self._sharing |= places.sharing(module)
        self._engines += (engines := [holder for holder in holders if holder.model is module])
        for name, each in parameters.items():
            tied = next((other for other, it in parameters.items() if it is each and not hasattr(each, "_fqns")), name)
            self._about[prefix + name] = [each.requires_grad, prefix + tied, str(each.dtype).removeprefix("torch.")]
            sharded = engines or is_part(each) or hasattr(each, "placements")
            if each.requires_grad and tied == name and not sharded:
                self._stack.callback(each.register_hook(partial(self._brought, id(module), prefix + name)).remove)
        self._reasons |= places.reasons(module)
        if self._now is not None:  # before any update of the step
            self._now["before"] |= self._parameters([(module, prefix)])

    def _after_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if get_ident() != self._thread:
            return
        while self._running and self._running.pop() is not module:
            pass
        if self._now is not None and not self._running and torch.is_grad_enabled():
            given = tree_leaves(outputs)
            prints.note_outputs(self._now["compute"], given)
            if self._seen is not None:
                self._learn(module)  # unless it had shapes before
                if not prints.hear(given, self._seen) and unwrapped(module).training:
                    self._seen(None)
            self._seen = None

    # The backward.

    def _scaled(self, original: Callable[..., Any], scaler: Any, *args: Any, **keywords: Any) -> Any:
        if scaler.is_enabled() and self._is_here():
            self._scale = scaler.get_scale()
            if self._now is not None:
                self._now["scale"] = self._scale
        return original(scaler, *args, **keywords)

    def _stepped(self, original: Callable[..., Any], scaler: Any, *args: Any, **keywords: Any) -> Any:
        result = original(scaler, *args, **keywords)
        if not self._updated and self._is_here():  # it has found an overflow: the step is over, and has no update
            self._done, self._updated = self._done + 1, True
            if self._now is not None:
                self._now["skipped"] = True
        return result

    def _backward(self, original: Callable[..., Any], tensors: Any, *args: Any, **keywords: Any) -> Any:
        if self._now is not None and self._is_here() and keywords.get("accumulate_grad"):  # `grad` has others
            self._line("backward")
            self._now["last"] = {}
            loss = tensors[0] if len(tensors) == 1 else None
            if isinstance(loss, torch.Tensor) and loss.numel() == 1 and not loss.is_complex():
                self._now["losses"].append(float(local(loss.detach())) / self._scale)
        return original(tensors, *args, **keywords)

    def _brought(self, of: int, name: str, gradient: torch.Tensor) -> None:
        now, what = self._now, f"gradient of {name}"
        if now is None or self._updated or of not in self._models or not self._sees(gradient, what):
            return
        mine = prints.print_of(name, gradient)
        for kind in ("local", "last"):
            sums = now[kind].get(name, [0.0] * len(mine.signed))
            now[kind][name] = [a + b / self._scale for a, b in zip(sums, mine.signed, strict=True)]

    # The update.

    def _before_update(self, optimizer: Any, args: Any, keywords: Any) -> tuple[Any, Any] | None:
        if not self._is_here(optimizer):
            return None
        self._updating.append(optimizer)
        return once_computed(args, keywords, lambda: self._update_begins(optimizer))

    def _update_begins(self, optimizer: Any) -> None:
        now = self._now
        if now is None:
            return
        self._line("update")
        now["updates"] += 1
        known = {id(tensor): pieces for tensor, pieces in places.of_models(self._models.values())}
        found_inf, scale = (getattr(optimizer, name, None) for name in ("found_inf", "grad_scale"))
        if found_inf is not None and float(found_inf):  # a fused one skips by itself
            now["skipped"] = True
            return
        for number, group in enumerate(optimizer.param_groups):
            settings = {key: prints.plain_value(group[key]) for key in SETTINGS if key in group}
            for place, tensor in enumerate(group["params"]):
                unknown = [places.Place(f"(the optimizer's own tensor {number}.{place})", 0, 0, local(tensor).numel())]
                # What an optimizer updates for another, as for the owner of a matrix, is no parameter.
                pieces = known.get(id(tensor), unknown if len(self._updating) == 1 else [])
                for piece in pieces:
                    now["settings"][piece.name] = settings
                scaled = scale is not None and tensor.grad is not None  # and divides by itself
                self._note(now["read"], pieces, tensor.grad / scale if scaled else tensor.grad, "gradient of ")
                for key, value in state_of(optimizer).get(tensor, {}).items():
                    if key in COUNTERS:
                        for piece in pieces:
                            now["state"].setdefault(key, {})[piece.name] = float(value)
                    elif isinstance(value, torch.Tensor) and value.shape == tensor.shape:
                        self._note(now["state"].setdefault(key, {}), pieces, value, f"{key} of ")

    def _after_update(self, optimizer: Any, args: Any, keywords: Any) -> None:
        if optimizer in self._updating:
            self._updating.remove(optimizer)
            if not self._updated and self._is_here(optimizer):  # asked again: another thread may train by now
                self._done, self._updated = self._done + 1, True

    def _note(self, where: dict[str, Any], pieces: list[Any], tensor: torch.Tensor | None, what: str = "") -> None:
        if tensor is None or not pieces or not self._sees(tensor, what + pieces[0].name):
            return
        flat = local(tensor.detach()).reshape(-1)
        for name, place, start, numel, at in pieces:
            if numel and place + numel <= flat.numel():
                found = prints.print_of(name, flat[place : place + numel], start, at)
                others = [each for each in where.get(name, []) if each[0] != start]
                where[name] = [*others, [start, *found.as_list()]]

    def _parameters(self, models: Iterable[tuple[nn.Module, str]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for tensor, pieces in places.of_models(models):
            self._note(found, [piece for piece in pieces if piece.name in self._about], tensor)
        return found

    def _is_here(self, optimizer: Any = None) -> bool:
        """Whether this is the thread that trains; or autograd's or another, whose optimizer updates the same models."""
        if self._over or optimizer is None or self._thread in (None, get_ident()):
            return not self._over and self._thread in (None, get_ident())
        mine = {id(tensor) for tensor, _ in places.of_models(self._models.values())}
        return any(id(each) in mine for group in optimizer.param_groups for each in group["params"])

    def _sees(self, tensor: torch.Tensor, what: str) -> bool:
        if why := prints.unreadable(tensor) or prints.unreadable(local(tensor)):
            self._not_seen(f"{what} ({why})")
        return not why

    def _not_seen(self, what: str) -> None:
        if self._now is not None and what not in self._now["unseen"]:
            self._now["unseen"].append(what)

    def _line(self, moment: str) -> None:
        here = self._sources.here()
        if here is not None and self._now is not None:
            self._now["lines"][moment] = f"{self._sources.texts[here.id].label}, line {here.line}"
