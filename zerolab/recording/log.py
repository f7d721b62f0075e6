"""The log of one rank: events as they happen, and the training step they belong to."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from time import monotonic_ns
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.recording.card import card_of
from zerolab.recording.events import CATEGORIES, PHASES, CardFigures, Event, Phase
from zerolab.recording.ledger import ACTIVATIONS, HOST, OTHER, Ledger
from zerolab.recording.sources import Sources
from zerolab.recording.streams import Streams
from zerolab.recording.wire import bytes_sent

# Not an Event yet: events are frozen, and most drafts get their end and their unit only after they are logged.
Draft = dict[str, Any]
"""An event that may not have ended yet: the fields of `Event` except `rank`, with `live` as `Levels`."""

Levels = dict[str, list[int]]
"""Bytes by device and category, in the ledger's order; which device is the rank's is known only later."""


def levels_on(levels: Levels, device: str) -> dict[str, int]:
    """The bytes on one device by category; empty if the levels lack the device."""
    return dict(zip(CATEGORIES, levels[device], strict=True)) if device in levels else {}


@dataclass(slots=True)
class StepFigures:
    """What is measured in one training step: bytes by device and category, and bytes sent."""

    number: int
    state: Levels | None = None  # at the optimizer's update
    step_counters: int = 0  # bytes of it that are step counters of optimizers outside engines
    peak: Levels = field(default_factory=dict)
    peaks: dict[str, Levels] = field(default_factory=dict)  # by phase
    wire_bytes: int | None = None  # until it ends, this and the next are the counts at its beginning
    operations: int = 0
    card: CardFigures | None = None  # None unless the rank is on a GPU
    tentative: bool = False  # begun by a model in evaluation mode: without a backward it is no step
    skipped: bool = False  # a scaler of torch's has left the update out, and another optimizer's may follow

    @property
    def is_updated(self) -> bool:
        """Whether its update has begun or was left out: the next forward or backward begins another step."""
        return self.state is not None or self.skipped


class Log:
    """Collects the events of one rank in the order in which they start."""

    def __init__(
        self, ledger: Ledger, sources: Sources, clock: Callable[[], int] = monotonic_ns, *, times_only: bool = False
    ) -> None:
        self.times_only = times_only  # the ledger is told about no memory
        self.ledger, self.sources, self.clock = ledger, sources, clock
        self.streams: Streams | None = None  # the device's, if it has any
        self._device, self.card = HOST, card_of(torch.device(HOST))
        self.drafts: list[Draft] = []
        self.steps: list[StepFigures] = []  # the finished ones
        self.current: StepFigures | None = None
        self.phase: Phase = "setup"
        self.in_backward = False
        self.operations = 0
        self.losses: list[float | torch.Tensor] = []  # a tensor is still in flight, until `read_losses`
        # Collectives are numbered per group, apart from events: only their numbers agree on all ranks of the group.
        self.numbers: defaultdict[tuple[int, ...] | None, Iterator[int]] = defaultdict(itertools.count)
        self._at_peak: Draft | None = None  # the last event that began at the step's peak so far
        self._take_peaks_as_logged()

    @property
    def step(self) -> int:
        """The current training step, counted from 1; 0 between steps."""
        return self.current.number if self.current is not None else 0

    @property
    def device(self) -> str:
        """Where the rank computes, by torch's name; the host as long as nothing is known to be allocated elsewhere."""
        return self._device if self.times_only or self._device in self.ledger.tallies else HOST

    def counts(self) -> bool:
        """Whether the ledger may be told what this thread does: it counts bytes, and is not another thread's."""
        return not self.times_only and self.ledger.is_mine()

    def compute_on(self, device: torch.device) -> None:
        """Sets where the rank computes, from the next step on."""
        if device.type != self._device:
            self._device, self.card = device.type, None if self.times_only else card_of(device)

    def add(self, kind: str, op: str, **fields: Any) -> Draft:
        """Logs an event that starts now, and also ends now unless `end` is called for it later."""
        # First, because the peak came before this event.
        self.log_peak()
        now = self.clock()
        draft: Draft = {"kind": kind, "op": op, "t_start": now, "t_end": now, "step": self.step, "phase": self.phase}
        draft |= fields
        # Walking up the frames is nearly half the cost of an event; callers that know there is no line pass None.
        if "source" not in draft:
            draft["source"] = self.sources.here(in_backward=self.in_backward)
        draft["live"] = {} if self.times_only else self.ledger.levels()
        if not self.times_only:
            tally = self.ledger.tallies[self.device]
            if tally.total == tally.peak_total:
                self._at_peak = draft
        self._append(draft)
        if self.streams is not None and kind in ("module", "optimizer"):  # they run on the compute stream
            self.streams.begin(draft["seq"])
        return draft

    def _append(self, draft: Draft) -> None:
        """Enters an event and numbers it by its place, as other threads may do at the same moment."""
        # Without a lock: a process that is forked while another thread holds it would wait for it forever.
        self.drafts.append(draft)
        seq = len(self.drafts) - 1
        while self.drafts[seq] is not draft:
            seq -= 1
        draft["seq"] = seq

    def end(self, draft: Draft) -> None:
        """Ends the event now."""
        self.log_peak()
        if self.streams is not None:
            self.streams.end(draft["seq"])
        draft["t_end"] = self.clock()
        if self.times_only:
            return
        tally, shown = self.ledger.tallies[self.device], draft["live"].get(self.device, ())
        if draft is self._at_peak and tally.total < tally.peak_total == sum(shown):
            # The event no longer shows it. A check's belongs to no step, and its peak neither.
            self._append_peak(self.device, self.drafts[-1]["t_start"], step=draft["step"], phase=draft["phase"])
        draft["live"] = self.ledger.levels()

    def log_peak(self) -> None:
        """Logs the step's peak so far on each device, if there was a new one since the last event."""
        if not self.counts():
            return
        self.ledger.settle()
        known = self._logged_peaks
        new = [(name, tally) for name, tally in self.ledger.tallies.items() if tally.peak is not known.get(name)]
        for device, tally in sorted(new, key=lambda place: place[1].peak_time):
            known[device] = tally.peak
            # While memory only grows, the next event shows the same bytes.
            if tally.peak_total > tally.total and device in (self.device, HOST):
                # Of the phase then: a loss is computed after the last module's forward, and backward may have begun.
                phase = next((name for name, moment in tally.phases.items() if moment.live is tally.peak), "")
                self._append_peak(device, tally.peak_time, step=self.step, phase=phase or self.phase)

    def _append_peak(self, device: str, time: int, *, step: int, phase: str) -> None:
        if self.current is None:
            return
        tally = self.ledger.tallies[device]
        op, text = "peak" if device == self.device else "host peak", f"in {tally.peak_operation}"
        draft = {"kind": "memory", "op": op, "t_start": time, "t_end": time, "step": step, "phase": phase}
        # The same list that `assign` corrects, so that the event agrees with the step's figures.
        draft |= {"live": self.ledger.levels() | {device: tally.peak}, "text": text}
        self._append(draft | {"source": None})

    def _take_peaks_as_logged(self) -> None:
        self._logged_peaks = {device: tally.peak for device, tally in self.ledger.tallies.items()}

    def add_loss(self, loss: torch.Tensor) -> None:
        """Notes a step's loss; on a GPU it stays in flight: the host must not wait during a run."""
        if not loss.is_cuda:
            self.losses.append(loss.item())
            return
        with _disable_current_modes():  # the copy is not part of the run
            self.losses.append(loss.detach().to("cpu", non_blocking=True))

    def read_losses(self) -> None:
        """Waits for the losses that are still in flight."""
        if any(isinstance(loss, torch.Tensor) for loss in self.losses):
            torch.cuda.synchronize()
        self.losses = [float(loss) for loss in self.losses]

    def begin_step(self, *, tentative: bool = False) -> None:
        """Begins a training step, and ends the one that is still open."""
        self.end_step()
        # Counted from the last step that ended: one that raised before its update starts again under the same number.
        number = self.steps[-1].number + 1 if self.steps else 1
        self.current = StepFigures(number, wire_bytes=bytes_sent(), operations=self.operations, tentative=tentative)
        self.ledger.start_peak()
        if self.card is not None:
            self.card.begin()
        self._take_peaks_as_logged()

    def drop_tentative_step(self) -> None:
        """Takes back a step that turned out to have no backward: its events belong to no step."""
        if self.current is not None and self.current.tentative:
            for draft in reversed(self.drafts):
                # Checks within it belong to no step anyway; an event of another step is from before this one.
                if draft["step"] not in (0, self.current.number):
                    break
                draft["step"] = 0
            self.current = None

    def end_step(self, *, is_skipped: bool = False) -> None:
        """Ends the step, unless it has made no update so far: then gradients are being accumulated.

        `is_skipped`: an engine has begun the step's update and may have skipped it: the step ends even without one.
        """
        current = self.current
        # The update is what makes a step: several backwards before it are micro-batches.
        if current is not None and (current.is_updated or is_skipped):
            self.steps.append(self._measured(current))  # first: `steps_over` must find it in one of the two
            self.current = None

    def steps_over(self) -> list[StepFigures]:
        """The finished steps, and one that nothing follows so far; any thread may ask, while no update is going on."""
        current, steps = self.current, self.steps.copy()
        # The rank's own thread may just have ended it.
        if current is None or not current.is_updated or (steps and steps[-1].number == current.number):
            return steps
        return [*steps, self._measured(current)]

    def _measured(self, step: StepFigures) -> StepFigures:
        """The step with what was measured of it until now."""
        tallies, sent = [*self.ledger.tallies.items()], bytes_sent()
        peaks: dict[str, Levels] = {
            phase: {device: tally.phases[phase].live for device, tally in tallies if phase in tally.phases}
            for phase in PHASES
            if phase in self.ledger.host.phases
        }
        card = None
        if self.card is not None:
            peak, older = self.ledger.tallies[self.device].peak_total, self.ledger.older(self.device)
            card = self.card.read() | {"ledger": peak, "older": older}
        return replace(
            step,
            peak={device: tally.peak for device, tally in tallies},
            peaks=peaks,
            operations=self.operations - step.operations,
            wire_bytes=None if sent is None or step.wire_bytes is None else sent - step.wire_bytes,
            card=card,
        )

    def enter(self, phase: Phase) -> None:
        """Enters a phase of the step."""
        self.phase = phase
        self.ledger.enter(phase)

    def compute(self, phase: Phase) -> None:
        """Enters a phase in which the model computes: what is allocated counts as activations."""
        self.enter(phase)
        self.ledger.category = ACTIVATIONS

    def rest(self) -> None:
        """The model has stopped computing: what is allocated from here on counts as `other`."""
        self.ledger.category = OTHER

    def enter_backward(self) -> None:
        """Backward has begun."""
        # Autograd has no hook for the start of backward: operations and hooks within it call this; the first counts.
        if not self.in_backward:
            self.in_backward = True
            if self.current is not None:
                self.current.tentative = False
            self.compute("backward")

    def events(self, rank: int, under_way: Iterable[Draft], now: int) -> list[Event]:
        """All events so far, as plain values; those under way last until `now`.

        Another thread may ask meanwhile: each event enters the list complete, and the list is copied in one step.
        """
        lasting, device = {draft["seq"] for draft in under_way}, self.device
        events = []
        for seq, draft in enumerate(self.drafts.copy()):
            levels = draft["live"]
            fields = {**draft, "seq": seq, "live": levels_on(levels, device)}
            if device != HOST:
                fields["host"] = levels_on(levels, HOST)
            if seq in lasting:
                fields["t_end"] = now
            events.append(Event(rank=rank, **fields))
        return events
