"""What a recording of the engines says, and that it leaves no trace in the process."""

import contextlib
import gc
import sys
import threading
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist

from zerolab import models, theory
from zerolab.engines import ENGINES, Zero1, collectives
from zerolab.engines.engine import Engine
from zerolab.engines.partition import partition
from zerolab.recording.recorder import Recorder, _all_of
from zerolab.runtime import observers
from zerolab.runtime.observers import Observer, watching
from zerolab.theory import STAGES


def what_a_recorder_touches():
    """Everything that is replaced or hooked while a recorder is on."""
    module, updates = torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
    functions = [getattr(collectives, name) for name in ("all_reduce", "reduce_scatter", "all_gather")]
    watchers = observers._observers.copy()
    return {
        "resize_": "resize_" in vars(torch.UntypedStorage),
        "wait": dist.Work.wait,
        "observers": watchers,
        "exchange": collectives.Exchange.wait,
        "engine": [vars(Engine)[name] for name in ("__init__", "rules", "step", "training_step")],
        "code": [(function.__code__, function.__defaults__) for function in functions],
        "names": set(vars(collectives)),
        "hooks": [len(module._global_forward_pre_hooks), len(module._global_forward_hooks)],
        "updates": [len(hooks) for hooks in vars(updates).values() if isinstance(hooks, OrderedDict)],
        "modes": torch._C._len_torch_dispatch_stack(),
    }


def test_nothing_is_left_in_place_when_the_recording_has_ended():
    before = what_a_recorder_touches()
    with Recorder():
        assert what_a_recorder_touches() != before
    assert what_a_recorder_touches() == before


def test_nothing_is_left_in_place_when_the_recorded_function_raises():
    before, recorder = what_a_recorder_touches(), Recorder()
    with pytest.raises(ZeroDivisionError), recorder:
        torch.ones(3).div_(1 // 0)
    assert what_a_recorder_touches() == before
    assert not recorder.finish().complete


def hooks_after_two_steps(stage, is_recorded):
    """How many hooks each parameter has, of a model whose engine is made while a recording is on, or without one."""
    with Recorder() if is_recorded else contextlib.nullcontext():
        engine = ENGINES[stage](models.build("mlp-odd"), torch.optim.SGD, lr=0.1)
        for batch in models.batches("mlp-odd", dist.get_world_size(), dist.get_rank(), 2):
            engine.training_step(*batch, models.loss)
    return [len(parameter._post_accumulate_grad_hooks or ()) for parameter in engine.model.parameters()]


@pytest.mark.parametrize("stage", STAGES)
def test_no_hook_is_left_on_a_parameter_whose_engine_was_made_in_the_recording(cluster, stage):
    assert cluster.run(hooks_after_two_steps, stage, True) == cluster.run(hooks_after_two_steps, stage, False)


def test_a_recorder_is_used_once_and_asked_at_its_end():
    recorder = Recorder()
    with recorder, pytest.raises(RuntimeError, match="still going on"):
        recorder.finish()
    with pytest.raises(RuntimeError, match="make a new one"), recorder:
        pass


@pytest.mark.parametrize("stage", STAGES)
def test_state_is_the_formula_plus_its_terms_on_every_rank(recordings, stage):
    layouts = partition(models.build("mlp-odd"), 2)
    terms = theory.terms(stage, layouts, 2)
    for rank in recordings[stage].ranks:
        assert sum(rank.state.values()) - sum(recordings[stage].info.formula.values()) == sum(terms.values())


@pytest.mark.parametrize("stage", STAGES)
def test_logical_bytes_are_those_of_the_formula_over_padded_flats(recordings, stage):
    padded = sum(layout.padded for layout in partition(models.build("mlp-odd"), 2))
    for rank in recordings[stage].ranks:
        assert rank.info.logical_bytes == [4 * theory.traffic_elements(stage, padded, 2)] * 3


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_collective_has_the_same_number_on_every_rank(recordings, stage):
    for collective in recordings[stage].collectives:
        assert set(collective.events) == {0, 1}
        assert len(collective.ops) == 1
        assert len({(event.unit, event.numel, event.step) for event in collective.events.values()}) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_sends_and_receives_belong_to_a_collective_and_carry_no_bytes(recordings, stage):
    for rank in recordings[stage].ranks:
        messages = [event for event in rank.events if event.kind == "collective" and event.parent is not None]
        assert messages
        for message in messages:
            parent = rank.events[message.parent]
            assert (message.op in ("send", "recv"), message.logical_bytes, message.number) == (True, 0, None)
            assert parent.number is not None
            assert parent.t_start <= message.t_start <= message.t_end <= parent.t_end
            assert message.peer == 1 - rank.rank


@pytest.mark.parametrize("stage", STAGES)
def test_every_exchange_of_a_step_names_its_unit_from_the_first_step_on(recordings, stage):
    units = {unit.name for unit in recordings[stage].units}
    for rank in recordings[stage].ranks:
        exchanges = [event for event in rank.events if event.kind in ("collective", "wait") and event.step]
        assert {event.step for event in exchanges} == {1, 2, 3}
        assert {event.unit for event in exchanges} == units


def test_every_wait_belongs_to_a_collective(recordings):
    for rank in recordings["zero3"].ranks:
        waits = [event for event in rank.events if event.kind == "wait"]
        assert {rank.events[wait.parent].seq for wait in waits} == {
            event.seq for event in rank.events if event.kind == "collective" and event.parent is None
        }


@pytest.mark.parametrize("stage", STAGES)
def test_what_the_ranks_own_at_the_end_covers_every_flat_once(recordings, stage):
    recording = recordings[stage]
    shards = {
        ("optimizer_state", "zero1"),
        ("optimizer_state", "zero2"),
        ("optimizer_state", "zero3"),
        ("parameters", "zero3"),
    }
    for category in ("parameters", "optimizer_state"):
        for unit in recording.units:
            held = [spans_at_end(rank, unit.name, category) for rank in recording.ranks]
            if (category, stage) in shards:
                assert held == [((0, unit.padded // 2),), ((unit.padded // 2, unit.padded),)]
            else:
                assert held == [((0, unit.padded),)] * 2


def spans_at_end(rank, unit, category):
    """What a rank holds after its last event."""
    return [e for e in rank.events if (e.op, e.unit, e.category) == ("hold", unit, category)][-1].spans


def test_zero2_lets_go_of_a_whole_gradient_when_its_owner_has_it(recordings):
    rank = recordings["zero2"].ranks[0]
    held = [e.spans for e in rank.events if (e.op, e.unit, e.category, e.step) == ("hold", "0", "gradients", 3)]
    assert held == [((0, 92),), ((0, 46),), ()]


def test_at_most_root_and_two_units_are_whole_at_any_moment_in_zero3(cluster, train):
    def whole_units_at_every_birth(train):
        from zerolab.recording.ledger import PARAMETERS, Ledger
        from zerolab.recording.recorder import Recorder

        seen, grow = set(), Ledger._grow

        def look(ledger, entry, nbytes):
            grow(ledger, entry, nbytes)
            flats = {unit.name: 4 * unit.padded for unit in recorder.ownership.units.values()}
            entries = [e for e in ledger._entries.values() if e.category == PARAMETERS and e.unit is not None]
            seen.add(frozenset(e.unit for e in entries if e.nbytes == flats.get(e.unit)))

        Ledger._grow = look
        try:
            with Recorder() as recorder:
                train("zero3", "gpt-tiny")
        finally:
            Ledger._grow = grow
        return seen, set(recorder.ownership.units)

    for seen, units in cluster.run(whole_units_at_every_birth, train):
        assert len(units) == 5
        assert frozenset().union(*seen) == units  # each of them was whole at some moment
        assert max(len(whole - {"root"}) for whole in seen) <= 2


def test_receive_buffers_are_communication_and_go_with_the_wait(recordings):
    for rank in recordings["zero2"].ranks:
        scatters = [e for e in rank.events if e.op == "reduce_scatter" and e.kind == "wait" and e.step == 3]
        assert scatters
        assert scatters[-1].live["communication"] == 0
        assert rank.info.peak["communication"] in {0, *(2 * unit.padded for unit in recordings["zero2"].units)}


def test_units_run_forward_in_order_and_backward_in_reverse(recordings):
    for rank in recordings["zero3"].ranks:
        for op, order in (("forward", ["root", "0", "2", "4"]), ("backward", ["root", "4", "2", "0"])):
            units = [e.unit for e in rank.events if (e.kind, e.op, e.step) == ("module", op, 2)]
            assert units == order


def test_the_sources_are_the_engines_lines_and_carry_no_path(recordings):
    recording = recordings["zero3"]
    for source in recording.sources.values():
        assert not source.label.startswith("/")
    lines = {
        event.op: recording.sources[event.source.id].text.splitlines()[event.source.line - 1]
        for event in recording.ranks[0].events
        if event.kind in ("collective", "optimizer") and event.parent is None and event.step == 3
    }
    assert "all_gather(" in lines["all_gather"]
    assert "reduce_scatter(" in lines["reduce_scatter"]
    assert "optimizer.step(" in lines["step"]
    backward = [e for e in recording.ranks[0].events if (e.kind, e.op) == ("module", "backward")]
    assert all(event.source.from_autograd for event in backward)


def test_a_rank_that_makes_no_update_has_no_step(cluster):
    def look():
        models.build("mlp-odd")(torch.zeros(4, 6))

    recording = cluster.record(look)
    assert recording.info.steps == 0
    assert recording.table().rows[0]["peak"] is None


def test_recording_changes_nothing_of_what_is_computed(cluster):
    def train(stage):
        engine = ENGINES[stage](models.build("mlp-odd"), torch.optim.AdamW, lr=1e-3)
        batches = models.batches("mlp-odd", 2, dist.get_rank(), 3)
        return [engine.training_step(*batch, models.loss).item() for batch in batches], engine.state_dict()

    for stage in ("zero1", "zero3"):
        (plain, weights), _ = cluster.run(train, stage)
        recording = cluster.record(train, stage)
        recorded, recorded_weights = recording.results[0]
        assert plain == recorded == recording.ranks[0].info.losses
        assert all(torch.equal(weights[key], recorded_weights[key]) for key in weights)


def test_micro_batches_that_add_up_are_one_step(cluster):
    def train():
        engine = ENGINES["zero2"](models.build("mlp-odd"), torch.optim.SGD, lr=0.1)
        batches = models.batches("mlp-odd", 2, dist.get_rank(), 4)
        for first, second in (batches[:2], batches[2:]):
            with engine.accumulate():
                engine.backward(models.loss(engine.model(first[0]), first[1]))
            engine.training_step(*second, models.loss)

    recording = cluster.record(train)
    assert recording.info.steps == 2
    scattered = [e for e in recording.ranks[0].events if e.op == "reduce_scatter" and e.kind == "collective"]
    assert [event.step for event in scattered] == [1] * 6 + [2] * 6  # every micro-batch is reduced


def test_an_engine_from_before_the_recording_is_found(cluster):
    def make_then_record():
        engine = ENGINES["zero1"](models.build("mlp-odd"), torch.optim.AdamW, lr=1e-3)
        batches = models.batches("mlp-odd", 2, dist.get_rank(), 2)
        with Recorder() as recorder:
            for batch in batches:
                engine.training_step(*batch, models.loss)
        return recorder.finish()

    for rank in cluster.run(make_then_record):
        assert rank.info.stage == "zero1"
        assert rank.state == {"parameters": 1376, "gradients": 1376, "optimizer_state": 1388}


def test_an_engine_that_is_dropped_is_freed_as_it_would_be_without_a_recorder(cluster):
    def make_and_drop():
        import weakref

        engine = ENGINES["zero1"](models.build("mlp-odd"), torch.optim.AdamW, lr=1e-3)
        known = weakref.ref(engine)
        del engine
        gc.collect()
        return known() is None

    assert cluster.record(make_and_drop).results == [True, True]


@pytest.mark.parametrize("offload", [False, True], ids=["plain", "offload"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_formula_and_the_terms_beside_a_run_are_those_of_its_precision_and_offload(cluster, precision, offload):
    def train(stage):
        options = {"precision": precision, "offload": offload}
        engine = ENGINES[stage](models.build("mlp-odd"), torch.optim.AdamW, lr=1e-3, **options)
        for batch in models.batches("mlp-odd", dist.get_world_size(), dist.get_rank(), 2):
            engine.training_step(*batch, models.loss)

    for stage in STAGES:
        recording = cluster.record(train, stage)
        world_size, num_params = recording.world_size, recording.num_params
        assert (recording.info.precision, recording.info.offload) == (precision, offload)
        assert recording.info.formula == theory.state_bytes(stage, num_params, world_size, precision)
        terms = theory.terms(
            stage, partition(models.build("mlp-odd"), world_size), world_size, precision, offload=offload
        )
        for rank in recording.ranks:
            assert sum(rank.state.values()) == sum(recording.info.formula.values()) + sum(terms.values())
            assert recording.explain(rank.rank)[-1]["difference"] == 0


@pytest.mark.slow
def test_other_threads_go_on_while_the_recorder_looks_for_what_exists():
    """It looks at every object, and a tuple that is being made of an iterator cannot grow while somebody else holds it.

    Many objects, and threads that take turns quickly: so the two meet for certain.
    """
    stop, made, failed = threading.Event(), [0], []
    kept = [[] for _ in range(200_000)]

    def make_tuples():
        while not stop.is_set():
            try:
                made[0] += len(tuple(number for number in range(1000)))
            except SystemError as error:
                failed.append(error)

    thread = threading.Thread(target=make_tuples)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(3):
            with Recorder():
                pass
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert made[0]
    assert not failed
    assert len(kept) == 200_000


def test_engines_of_derived_classes_that_exist_already_are_found(cluster):
    def say_what_a_recorder_knows():
        class Mine(Zero1):
            stage = "zero1"

        class MyOwn(Mine):
            pass

        engine = MyOwn(models.build("mlp-odd"), torch.optim.AdamW)
        with Recorder() as recorder:
            pass
        found = recorder.finish()
        return found.info.stage, len(found.units) == len(engine.flats)

    assert cluster.run(say_what_a_recorder_knows) == [("zero1", True)] * 2


def test_what_lives_is_found_by_its_very_class():
    class Mine(list):
        pass

    class MyOwn(Mine):
        pass

    made = [MyOwn(), Mine()]
    gc.collect()
    assert _all_of([MyOwn]) == made[:1]


def test_recordings_leave_nothing_behind_in_torchs_compiler(cluster, record):
    def skipped():
        from torch._dynamo import trace_rules

        return len(trace_rules.SKIP_DIRS)

    before, _ = cluster.run(skipped)
    assert [cluster.record(skipped).results[0] for _ in range(2)] == [before] * 2, "a rank has told it as it started"
    skipped()  # the compiler is there
    first, second = (record(torch.ones, 1) and skipped() for _ in range(2))
    assert first == second


def test_a_recorder_reads_the_clock_that_it_is_given():
    ticks = iter(range(10**6))
    with Recorder(clock=lambda: next(ticks)) as recorder:
        torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
    events = recorder.finish().events
    assert events
    assert all(event.t_end < 10**6 for event in events)


def test_observers_hear_of_a_collective_and_of_its_wait_but_not_of_those_within_it(cluster):
    def listen():
        from contextlib import contextmanager

        class Listener(Observer):
            def __init__(self):
                self.heard = []

            @contextmanager
            def starting(self, call):
                yield
                self.heard.append(f"start {call.op}")

            @contextmanager
            def waiting(self, call):
                yield
                self.heard.append(f"wait {call.op} {call.name}")

        listener = Listener()
        with watching(listener):
            exchange = collectives.all_reduce(torch.ones(4), name="mine")
            exchange.wait()
            exchange.wait()
        collectives.all_gather(torch.ones(4)).wait()
        return listener.heard

    assert cluster.run(listen) == [["start all_reduce", "wait all_reduce mine"]] * 2


class Resting(torch.nn.Sequential):
    """The odd MLP with a parameter that rests in its second unit, and a fourth unit that rests as a whole."""

    def __init__(self):
        super().__init__(*models.build("mlp-odd"), torch.nn.Linear(3, 7))
        self[2].resting = torch.nn.Parameter(torch.ones(29))

    def forward(self, x):
        for module in list(self)[:-1]:
            x = module(x)
        return x


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_is_never_used_has_a_term_of_its_own_and_the_sum_is_exact_on_every_rank(cluster, precision):
    def train(stage):
        engine = ENGINES[stage](Resting(), torch.optim.AdamW, lr=1e-3, precision=precision)
        for batch in models.batches("mlp-odd", dist.get_world_size(), dist.get_rank(), 2):
            engine.training_step(*batch, models.loss)

    for stage in STAGES:
        recording = cluster.record(train, stage)
        for rank in recording.ranks:
            rows = recording.explain(rank.rank)
            assert rows[-1]["difference"] == 0, (stage, rank.rank)
            assert [row["bytes"] < 0 for row in rows if row["term"] == "unused"] == [True]


class UnreadTensor(torch.Tensor):
    def __repr__(self):
        pytest.fail("somebody reads it")


def test_a_call_is_shown_without_a_look_at_what_travels():
    call = observers.Call("all_reduce", torch.ones(4).as_subclass(UnreadTensor), None, "mine")
    assert "Call" in repr(call)
