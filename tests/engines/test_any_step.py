"""Whatever happens around a step: evaluation, errors, unused forwards, odd calls; all stages, two real ranks."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from zoo import STAGES, WIDTH, Stack, batch, distance, frozen, loss_of, make, train_alone

from zerolab import RankError
from zerolab.engines import ENGINES


def my_rows(step):
    """This rank's rows of a step's batch."""
    import torch.distributed as dist

    return batch(step).chunk(dist.get_world_size())[dist.get_rank()]


def on_every_stage(run, *arguments, stages=STAGES, model=None, **keywords):
    """Runs `run(engine, rank)` with a fresh engine of each stage; what it returns, or its error's sentence."""
    import torch.distributed as dist

    results = {}
    for stage in stages:
        engine = ENGINES[stage](model() if model else make("plain"), torch.optim.SGD, lr=0.1, **keywords)
        results[stage] = run(engine, dist.get_rank())
    return results


def step(engine, number):
    engine.training_step(my_rows(number), None, lambda outputs, _: loss_of(outputs))


def sentence_of(action):
    """What the error says that `action` raises."""
    with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
        action()
    return str(caught.value)


def plain_steps(count):
    """The parameters after so many steps of one process."""
    return train_alone("plain", torch.optim.SGD, count, parts=1, lr=0.1)[0]


def assert_all_close(results, reference):
    for ends in results:
        assert {stage: far for stage in ends if (far := distance(ends[stage], reference)) > 1e-6} == {}


def assert_as_three_plain_steps(results):
    assert_all_close(results, plain_steps(3))


@pytest.mark.parametrize("keywords", [{}, {"release_after_forward": False}, {"prefetch": 0}])
def test_evaluation_at_any_time_changes_nothing(clusters, keywords):
    def evaluating(engine, rank):
        with torch.inference_mode():
            engine.model.eval()(batch(0)[: 3 + rank])  # ranks may evaluate uneven numbers of rows, even at first
        for number in range(3):
            with torch.no_grad():
                engine.model.eval()(batch(1))
            loss = loss_of(engine.model.train()(my_rows(number)))
            with torch.inference_mode():
                engine.model(batch(2))
            engine.backward(loss)
            with torch.inference_mode():  # what is gathered now is out of date after the update
                before = engine.model(batch(3))
            engine.step()
            with torch.no_grad():
                assert not torch.equal(engine.model(batch(3)), before)
        return engine.state_dict()

    stages = ["zero3"] if keywords else STAGES
    assert_as_three_plain_steps(clusters(2).run(on_every_stage, evaluating, stages=stages, **keywords))


def test_rank_0_may_evaluate_alone_where_it_holds_the_whole_model(clusters):
    def evaluating(engine, rank):
        if rank == 0:
            with torch.no_grad():
                engine.model(batch(0))
        for number in range(3):
            step(engine, number)
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, evaluating, stages=STAGES[:3]))


def test_a_forward_whose_loss_is_never_used_changes_nothing(clusters):
    def wasting(engine, rank):
        kept = []
        for number in range(3):
            engine.model(batch(1))
            kept.append(engine.model(batch(2)))  # its graph lives on
            step(engine, number)
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, wasting))


def test_two_forwards_before_one_backward_are_one_batch(clusters):
    def two_forwards(engine, rank):
        for number in range(3):
            halves = [loss_of(engine.model(half)) for half in my_rows(number).chunk(2)]
            engine.backward(sum(halves) / 2)
            engine.step()
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, two_forwards))


class Failing(torch.autograd.Function):
    """Passes values on, and fails in backward."""

    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, _gradient):
        raise ArithmeticError("as planned")


def test_an_error_in_a_forward_or_a_backward_leaves_no_trace_in_the_next_step(clusters):
    def failing(engine, rank):
        for number in range(3):
            handle = engine.model.blocks[1].down.register_forward_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine.model(my_rows(5))
            handle.remove()
            handle = engine.model.blocks[1].register_forward_hook(lambda _module, _inputs, out: Failing.apply(out))
            with pytest.raises(ArithmeticError):
                step(engine, 6)
            handle.remove()
            step(engine, number)
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, failing))


def test_a_loss_that_nothing_can_be_learned_from_is_refused(clusters):
    def hopeless(engine, rank):
        with torch.no_grad():
            loss = loss_of(engine.model(my_rows(0)))
        sentences = [sentence_of(lambda: engine.backward(loss)), sentence_of(lambda: engine.backward({"loss": loss}))]
        for number in range(3):
            step(engine, number)
        assert "the loss needs no gradient" in sentences[0]
        assert "the loss is a dict: pass a tensor" in sentences[1]
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, hopeless))


def test_reentrant_checkpointing_is_refused_by_name(clusters):
    def reentrant(engine, rank):
        x = engine.model.entry(my_rows(0))
        loss = checkpoint(engine.model.blocks[0], x, use_reentrant=True).sum()
        return sentence_of(lambda: engine.backward(loss))

    for sentences in clusters(2).run(on_every_stage, reentrant):
        assert all("reentrant activation checkpointing" in sentences[stage] for stage in STAGES)
        assert all("use_reentrant=False" in sentences[stage] for stage in STAGES)


def test_a_parameter_that_is_unfrozen_later_is_refused_by_name(clusters):
    def unfrozen(engine, rank):
        engine.model.requires_grad_(True)
        return sentence_of(lambda: step(engine, 0))

    for sentences in clusters(2).run(on_every_stage, unfrozen, model=lambda: frozen(Stack(), "blocks.1.up.weight")):
        assert all("'blocks.1.up.weight' was frozen when" in sentences[stage] for stage in STAGES)


def test_a_model_is_taken_once_and_is_not_copied(clusters):
    def taken_twice(engine, rank):
        again = sentence_of(lambda: ENGINES["ddp"](engine.model, torch.optim.SGD))
        return again, sentence_of(lambda: copy.deepcopy(engine.model)), sentence_of(lambda: pickle.dumps(engine.model))

    for sentences in clusters(2).run(on_every_stage, taken_twice):
        for again, copied, pickled in sentences.values():
            assert "'entry.weight' belongs to an engine already" in again
            assert "cannot be copied" in copied
            assert "load engine.state_dict() into another module" in pickled


def sharing_memory():
    model = Stack()
    model.blocks[1].up.weight.data = model.blocks[0].up.weight.data
    return model


def sharing_a_row():
    model = Stack()
    model.blocks[1].norm.weight.data = model.blocks[0].down.weight.data.view(-1)[6:12]
    return model


def buffer_that_is_a_row():
    model = nn.Linear(3, 3)
    model.register_buffer("row", model.weight.detach()[1])
    return model


def sharing_a_storage_without_an_element():
    model, columns = Stack(), torch.randn(6, 2)
    model.blocks[0].norm.weight.data, model.blocks[1].norm.weight.data = columns.unbind(1)
    return model


def buffer_that_is_a_parameter():
    model = nn.Linear(3, 3)
    model.register_buffer("again", model.weight.detach(), persistent=False)
    return model


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (sharing_memory, "'blocks.1.up.weight' and 'blocks.0.up.weight' share memory but are two parameters"),
        (sharing_a_row, "'blocks.1.norm.weight' and 'blocks.0.down.weight' share memory but are two parameters"),
        (buffer_that_is_a_row, "the buffer 'row' and 'weight' share memory, which the engine would part"),
        (buffer_that_is_a_parameter, "the buffer 'again' and 'weight' share memory, which the engine would part"),
        (lambda: nn.LazyLinear(3), "'weight' has no shape yet"),
        (lambda: nn.Linear(3, 3, device="meta"), "'weight' is on the meta device"),
        (lambda: [nn.Linear(3, 3)], "pass a torch.nn.Module"),
    ],
)
def test_a_model_that_cannot_be_laid_out_is_refused(clusters, model, sentence):
    with pytest.raises(RankError) as caught:
        clusters(1).run(lambda: ENGINES["ddp"](model(), torch.optim.SGD))
    assert sentence in str(caught.value)


def test_parameters_that_share_a_storage_but_no_element_are_taken(clusters):
    model = sharing_a_storage_without_an_element
    keys = clusters(1).run(lambda: [*ENGINES["ddp"](model(), torch.optim.SGD).state_dict()])
    assert keys == [[*Stack().state_dict()]]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int16, torch.uint16, torch.bool])
def test_frozen_codes_of_any_dtype_are_taken(clusters, dtype):
    """gloo does not know all of them by name."""

    def codes():
        import torch.distributed as dist

        model = Stack()
        values = torch.arange(5).add(dist.get_rank()).to(dtype)
        model.blocks[1].codes = nn.Parameter(values, requires_grad=False)
        return model

    def trained(engine, _rank):
        step(engine, 0)
        return engine.state_dict()["blocks.1.codes"].float().tolist()

    expected = torch.arange(5).to(dtype).float().tolist()  # rank 0's
    assert clusters(2).run(on_every_stage, trained, model=codes) == [dict.fromkeys(STAGES, expected)] * 2


def test_batch_normalisation_in_bf16_is_refused_by_name(clusters):
    with pytest.raises(RankError, match="'1' is a BatchNorm1d, whose statistics stay in fp32"):
        clusters(1).run(lambda: ENGINES["zero1"](make("batch normalisation"), torch.optim.SGD, precision="bf16"))


def test_engines_take_no_random_number(clusters):
    def drawing():
        before, states = torch.get_rng_state(), {}
        for stage in STAGES:
            model = make("plain")
            torch.set_rng_state(before)
            engine = ENGINES[stage](model, torch.optim.SGD, lr=0.1)
            step(engine, 0)
            states[stage] = torch.equal(before, torch.get_rng_state())
        return states

    assert clusters(2).run(drawing) == [dict.fromkeys(STAGES, True)] * 2


def test_the_gradient_of_the_inputs_is_the_one_of_one_process(clusters):
    def asking(engine, rank):
        rows = my_rows(0).requires_grad_()
        step_loss = loss_of(engine.model(rows))
        (by_grad,) = torch.autograd.grad(step_loss, rows, retain_graph=True)
        engine.backward(step_loss)
        engine.step()
        assert torch.allclose(rows.grad, by_grad, atol=1e-7)
        return rows.grad

    rows = batch(0).requires_grad_()
    loss_of(make("plain")(rows)).backward()
    for rank, gradients in enumerate(clusters(2).run(on_every_stage, asking)):
        for gradient in gradients.values():
            assert torch.allclose(gradient / 2, rows.grad.chunk(2)[rank], atol=1e-6)


def test_autocast_works_as_in_one_process(clusters):
    def autocasting(engine, rank):
        for number in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(engine.model(my_rows(number)))
            engine.backward(loss)
            engine.step()
        return engine.state_dict()

    def in_one_process():
        model = make("plain")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model(batch(number)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict()

    alone, everyone = clusters(1).run(on_every_stage, autocasting), clusters(2).run(on_every_stage, autocasting)
    # In a rank as well: with as many threads, or sums in another order are rounded to another bf16.
    (expected,) = clusters(1).run(in_one_process)
    for stage in STAGES:
        assert distance(alone[0][stage], expected) <= 1e-6
        assert all(distance(ends[stage], expected) <= 5e-3 for ends in everyone)  # bf16 rounds half batches


def test_gradients_from_before_the_engine_do_not_count(clusters):
    def used():
        model = make("plain")
        loss_of(model(batch(7))).backward()
        return model

    def three_steps(engine, rank):
        for number in range(3):
            step(engine, number)
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, three_steps, model=used))


def test_a_dict_of_inputs_becomes_keywords(clusters):
    def with_dicts(engine, rank):
        for number in range(3):
            engine.training_step({"x": my_rows(number)}, None, lambda outputs, _: loss_of(outputs))
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, with_dicts))


def test_two_engines_train_against_each_other(clusters):
    def adversaries():
        ends = {}
        for stage in STAGES:
            torch.manual_seed(0)
            maker, judge = nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, WIDTH)), Stack()
            making = ENGINES[stage](maker, torch.optim.SGD, lr=0.1)
            judging = ENGINES[stage](judge, torch.optim.SGD, lr=0.1)
            for number in range(3):
                rows = my_rows(number)
                made = making.model(rows)
                judging.backward(judging.model(made.detach()).mean() - judging.model(rows).mean())
                judging.step()
                judge.requires_grad_(False)
                making.backward(-judging.model(made).mean())
                making.step()
                judge.requires_grad_(True)
            ends[stage] = {**making.state_dict(), **judging.state_dict()}
        return ends

    torch.manual_seed(0)
    maker, judge = nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, WIDTH)), Stack()
    making, judging = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (maker, judge))
    for number in range(3):
        made = maker(batch(number))
        (judge(made.detach()).mean() - judge(batch(number)).mean()).backward()
        judging.step()
        (-judge(made).mean()).backward()
        making.step()
        making.zero_grad()
        judging.zero_grad()
    reference = {**maker.state_dict(), **judge.state_dict()}
    for ends in clusters(2).run(adversaries):
        assert {stage: far for stage in STAGES if (far := distance(ends[stage], reference)) > 1e-6} == {}


@pytest.mark.parametrize("name", ["plain", "whole frozen blocks", "keyword inputs of blocks with frozen weights"])
def test_zero3_holds_one_block_at_a_time_also_frozen_ones(clusters, name):
    def watching(engine, rank):
        most = 0

        def count(*_):
            nonlocal most
            blocks = {flat.layout.unit for flat in engine.flats if flat.whole.untyped_storage().size()} - {"root"}
            most = max(most, len(blocks))

        for block in engine.model.blocks:
            block.down.register_forward_hook(lambda _module, _inputs, out: out.register_hook(count) and None)
            block.norm.register_forward_hook(lambda _module, _inputs, out: out.register_hook(count) and None)
            block.register_forward_pre_hook(count)
        for number in range(2):
            rows = my_rows(number)
            engine.backward(loss_of(engine.model(x=rows)))
            engine.step()
        return most

    keywords = {"stages": ["zero3"], "model": lambda: make(name), "prefetch": 0}
    assert clusters(2).run(on_every_stage, watching, **keywords) == [{"zero3": 1}] * 2


@pytest.mark.slow  # it compiles
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_trains_as_the_same_model_does(clusters):
    def compiled(engine, rank):
        model = torch.compile(engine.model, backend="aot_eager")  # as any backend, but needs no compiler of C++
        for number in range(3):
            engine.backward(loss_of(model(my_rows(number))))
            engine.step()
        return engine.state_dict()

    assert_as_three_plain_steps(clusters(2).run(on_every_stage, compiled))


def test_an_engine_goes_when_it_is_dropped_even_if_its_model_keeps_what_it_has_computed(clusters):
    def dropping():
        import gc
        import weakref

        engines = []
        for stage in STAGES:
            engine = ENGINES[stage](make("losses kept aside"), torch.optim.SGD, lr=0.1)
            step(engine, 0)
            engines.append(weakref.ref(engine))
            del engine
        gc.collect()
        return [stage for stage, engine in zip(STAGES, engines, strict=True) if engine() is not None]

    assert clusters(2).run(dropping) == [[], []]
