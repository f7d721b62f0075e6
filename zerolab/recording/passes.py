"""Forward, backward and the update: which module runs when, and in which training step."""

from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import current_thread, get_ident
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from zerolab.names import ROOT
from zerolab.recording.ledger import GRADIENTS
from zerolab.recording.log import Draft, Log
from zerolab.recording.modules import Modules
from zerolab.recording.others import ELSEWHERE
from zerolab.recording.ownership import Ownership
from zerolab.recording.patches import once_computed, replace
from zerolab.recording.updates import hearing_updates
from zerolab.recording.wrappers import has_shapes, unwrapped
from zerolab.runtime.observers import Holder, Observer, watching

# What `backward` and `grad` of torch.autograd both call: a script may have imported these by name.
BACKWARD, BACKWARD_IN = "_engine_run_backward", [torch.autograd, torch.autograd.graph]
_BACKWARD = torch.autograd.graph._engine_run_backward.__code__


def in_backward() -> bool:
    """Whether autograd is at work in this thread, where activation checkpointing runs forwards again."""
    return torch._C._current_graph_task_id() != -1


def may_train(module: nn.Module) -> bool:
    """Whether the forward that begins may be one of training; one in evaluation mode is, if a backward follows."""
    if not torch.is_grad_enabled() or in_backward():
        return False
    training = unwrapped(module).training
    return any(training or each.requires_grad for each in module.parameters())


class Passes(Observer):
    """Logs the units' forward and backward and the optimizer's updates, and counts the training steps."""

    def __init__(self, log: Log, ownership: Ownership) -> None:
        self._log, self._ownership = log, ownership
        self._modules = Modules(log, ownership)
        self._running: list[tuple[nn.Module, Draft]] = []
        self._backward: list[Draft] = []  # the root's, and on top of it the current unit's
        self._updating: list[tuple[Any, Draft]] = []
        self.saves: list[Draft] = []  # those that have begun and not ended; they may outlast the recording
        self._is_updating = False  # an engine has begun its update and not yet ended it
        self._hears_updates = False  # has heard one; a recording that begins within a closure misses that update's hook
        self._computes_again = False  # an optimizer, within its update, calls the closure that it was given
        self._trains_elsewhere = False  # another thread updates a model, and a note says so
        self._evaluations = 0  # nested `evaluation()` blocks
        self._stack: ExitStack | None = None
        self._watched: Any = WeakIdKeyDictionary()  # the parameters whose gradients are watched

    def install(self, stack: ExitStack) -> None:
        """Watches until `stack` closes."""
        self._stack = stack
        stack.callback(setattr, self, "_stack", None)
        stack.enter_context(watching(self))
        for handle in (
            register_module_forward_pre_hook(self.forward_begins),
            register_module_forward_hook(self._after_forward),
        ):
            stack.callback(handle.remove)
        stack.enter_context(hearing_updates(before=self._before_update, after=self._after_update))
        stack.enter_context(replace(torch.amp.GradScaler, "step", self._step_of_scaler))
        stack.enter_context(replace(BACKWARD_IN, BACKWARD, self._differentiate))

    def made(self, engine: Holder) -> None:
        """Registers an engine."""
        self.watch_gradients(engine.model)
        self._modules.add_engine(engine)

    def watch_gradients(self, model: nn.Module) -> None:
        """Makes each parameter's gradient count as one as soon as it exists, before anybody else can move it."""
        for parameter in () if self._log.times_only else model.parameters():
            if self._stack is None or parameter in self._watched or not (parameter.requires_grad and parameter.is_leaf):
                continue
            self._watched[parameter] = True
            handle = parameter.register_post_accumulate_grad_hook(self._on_gradient)
            hooks: Any = parameter._post_accumulate_grad_hooks
            for other in [key for key in hooks if key != handle.id]:  # go last: an engine's hooks move the gradient
                hooks[other] = hooks.pop(other)
            self._stack.callback(handle.remove)

    @property
    def is_updating(self) -> bool:
        """Whether an update has begun and not yet ended."""
        return self._is_updating or bool(self._updating)

    def under_way(self, left: Container[object] | None = None) -> list[Draft]:
        """The passes and updates that have begun and not ended; where an error ended them, those that it `left`."""
        owned = [draft for owner, draft in (*self._running, *self._updating) if left is None or owner in left]
        return owned + (self._backward if left is None or _BACKWARD in left else []) + self.saves

    @contextmanager
    def saving(self, op: str, nbytes: int) -> Iterator[None]:
        """Logs a save; its end may come in another thread, which changes nothing but the event's own time."""
        draft = self._log.add("save", op, text=f"{nbytes} bytes")
        self.saves.append(draft)
        try:
            yield
        finally:
            draft["t_end"] = self._log.clock()
            self.saves.remove(draft)

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and type(gradient) is torch.Tensor:
            self._log.ledger.assign(gradient, GRADIENTS, None)

    def forward_begins(self, module: nn.Module, inputs: Any) -> None:
        """A module is about to be called; a recording that begins in a hook of torch's says so: ours comes too late."""
        # Activation checkpointing runs it again within backward; torch still calls this after a hook stops recording.
        if self._stack is None or in_backward() or self._log.ledger.thread != get_ident():
            return
        name = self._modules.name_of(module)
        if name is None:
            if self._running or not isinstance(next(module.parameters(), None), nn.Parameter):
                return  # inside a unit, or a loss
            if not has_shapes(module):
                return  # this forward gives them to it
            name = self._modules.learn(module)
        elif self._running and self._running[-1][1]["unit"] == name and self._running[-1][0] is not module:
            return  # a model that was called earlier without its wrapper
        if self._running and self._running[0][0] is module:
            self._running.clear()  # the last forward raised
        if not self._running:
            self._begin(training=unwrapped(module).training)  # Lightning leaves its DDP in evaluation mode
        self._running.append((module, self._log.add("module", "forward", unit=name)))

    def backward_begins(self) -> None:
        """A backward is about to be computed, for whose forward there may be no hook."""
        if not (self._computes_again or self._evaluations):
            self._begin_step(tentative=False)

    def _differentiate(self, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        if self._log.ledger.thread == get_ident() and not in_backward():
            self.backward_begins()
            if self._log.times_only:  # else the first operation says so
                self._log.enter_backward()
        return original(*args, **keywords)

    def updating(self) -> None:
        """An engine's update begins, before its optimizer's: gradients may have to be cast first."""
        if self._log.step:
            self._log.enter("step")
        self._is_updating = True

    def updated(self, engine: Holder) -> None:
        """The step is over, with its communication; after an overflow in fp16 it had neither that nor an update."""
        self._ownership.sync()
        self._log.end_step(is_skipped=self._is_updating)
        self._is_updating = False

    def trained(self, loss: torch.Tensor) -> None:
        """Notes the loss."""
        if type(loss) is torch.Tensor and loss.numel() == 1 and not loss.is_meta:  # a simulated one has no value
            self._log.add_loss(loss)

    def beginning(self) -> None:
        """A loop says that a step begins: what it holds by now is of no step, and no scratch."""
        self._begin_step(tentative=False)
        self._ownership.sync()

    def _begin_step(self, *, tentative: bool) -> None:
        """Begins a training step, if none without an update is under way: a loop says so, or a forward after one."""
        if self._log.current is None or self._log.current.is_updated:
            self._log.begin_step(tentative=tentative)
            self._log.enter("forward")

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """No training: a step that has made its update ends, and the next begins with a forward after the block."""
        self._evaluations += 1
        self._log.drop_tentative_step()
        self._log.end_step()
        try:
            yield
        finally:
            self._evaluations -= 1
            self._log.rest()

    def _begin(self, *, training: bool) -> None:
        log = self._log
        log.in_backward = False
        self._backward.clear()
        if not self._computes_again:  # else the step goes on, and so does its update
            self._updating.clear()
            self._is_updating = False  # the last update raised
            if self._evaluations or not torch.is_grad_enabled():
                log.end_step()
            else:
                if training:
                    log.drop_tentative_step()
                self._begin_step(tentative=not training)
        self._ownership.sync()
        log.compute("forward")

    def _after_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if in_backward():
            self._after_recomputation(module, outputs)
            return
        if not self._running or self._running[-1][0] is not module or self._log.ledger.thread != get_ident():
            return
        _, draft = self._running.pop()
        if self._ownership.models.under_others:
            # The unit is still whole, maybe in parameters that were never seen before.
            self.watch_gradients(module)
            self._ownership.look_at(draft["unit"])
        self._log.end(draft)
        outermost = self._running[0][1]["unit"] if self._running else draft["unit"]
        self._await_gradient(outputs, draft["unit"], outermost if outermost in self._modules.roots else ROOT)
        if not self._running and not torch.is_grad_enabled():
            self._log.rest()

    def _after_recomputation(self, module: nn.Module, outputs: Any) -> None:
        """Reentrant checkpointing computes a unit without a graph first, and only here with one."""
        unit = self._modules.name_of(module) if self._stack is not None and self._log.ledger.is_mine() else None
        if unit is not None and unit not in self._modules.roots:
            self._await_gradient(outputs, unit, self._backward[0]["unit"] if self._backward else ROOT)

    def _await_gradient(self, outputs: Any, unit: str, root: str) -> None:
        hook = partial(self._before_backward, unit, root)
        for output in (outputs,) if isinstance(outputs, torch.Tensor) else tree_leaves(outputs):
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(hook)

    def _before_backward(self, unit: str, root: str, gradient: torch.Tensor) -> None:
        """The gradient of a unit's output has arrived: its backward begins, and the previous unit's ends."""
        log = self._log
        log.enter_backward()
        if not self._backward:
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        if not self._backward or self._backward[0]["unit"] != root:  # a GAN's backward goes from one model to the other
            self._end_backward()
            self._backward.append(log.add("module", "backward", unit=root))
        if unit == root or self._backward[-1]["unit"] == unit:
            return
        self._end_backward(keep=1)
        self._backward.append(log.add("module", "backward", unit=unit))

    def _end_backward(self, keep: int = 0) -> None:
        while len(self._backward) > keep:
            if (unit := self._backward[-1]["unit"]) in self._modules.late:
                self._ownership.look_at(unit)
            self._log.end(self._backward.pop())

    def _after_backward(self) -> None:
        self._end_backward()
        self._log.in_backward = False
        self._log.rest()
        self._ownership.sync()

    def _before_update(self, optimizer: Any, args: Any, keywords: Any) -> tuple[Any, Any] | None:
        if not self._log.ledger.is_mine():
            if not self._trains_elsewhere:
                self._trains_elsewhere = True
                self._log.add("note", "another thread", text=ELSEWHERE.format(name=current_thread().name))
            return None
        self._hears_updates = True
        return once_computed(args, keywords, lambda: self._update_begins(optimizer), self._computing_again)

    @contextmanager
    def _computing_again(self) -> Iterator[None]:
        """The passes within this block belong to an update that has begun."""
        before, self._computes_again = self._computes_again, True  # one optimizer may hand its closure to another
        try:
            yield
        finally:
            self._computes_again = before
            if self._stack is not None:
                self._log.in_backward = False
                self._log.enter("step")
                self._log.rest()

    def _update_begins(self, optimizer: Any) -> None:
        if self._stack is None:
            return  # the recording has ended within the closure
        log = self._log
        if self._updating:
            self._ownership.optimizers.hand_over(optimizer, self._updating[0][0])
        else:
            self._ownership.before_update(optimizer)
            if log.current is None:  # a loop without modules
                log.begin_step()
            log.in_backward = False
            log.enter("step")
            log.rest()
            if log.current is not None and log.current.state is None:
                log.ledger.settle()
                log.current.state = log.ledger.levels()
                log.current.step_counters = 0 if log.times_only else self._ownership.optimizers.step_counters()
        self._updating.append((optimizer, log.add("optimizer", "step")))

    def _after_update(self, optimizer: Any, args: Any, keywords: Any) -> None:
        if not self._log.ledger.is_mine():
            return
        if not self._hears_updates:
            self._hears_updates = True
            self._update_begins(optimizer)  # too late for its length, but it is this that makes the step one
        while self._updating:  # more than one if an inner update raised
            other, draft = self._updating.pop()
            self._log.end(draft)
            if other is optimizer:
                break
        self._ownership.after_update(optimizer)

    def _step_of_scaler(self, original: Callable[..., Any], scaler: Any, *args: Any, **keywords: Any) -> Any:
        result = original(scaler, *args, **keywords)
        # Without a step it was an engine's, which has said so.
        if self._log.current is not None and self._log.ledger.is_mine():
            self._log.current.skipped = self._log.current.state is None
        return result
