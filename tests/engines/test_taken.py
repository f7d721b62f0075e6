"""Loops that reach for gradients themselves: obeyed as one process obeys, or refused in a sentence; real ranks."""

import pytest
import torch
from test_any_step import assert_all_close, my_rows, on_every_stage, plain_steps, sentence_of, step
from torch import nn
from zoo import STAGES, batch, distance, loss_of, make

from zerolab.engines import ENGINES

CLIP, UPDATE, DROP = "engine.clip_grad_norm_()", "engine.step()", "engine.zero_grad()"


def halve(engine):
    for parameter in engine.model.parameters():
        parameter.grad *= 0.5


def clear(engine):
    for parameter in engine.model.parameters():
        parameter.grad = None


def clamp(parameter):
    parameter.grad.clamp_(-1e-3, 1e-3)


def updated_by(engine):
    return [parameter for group in engine.optimizer.param_groups for parameter in group["params"]]


def replace(engine):
    engine.model.head.bias.grad = torch.ones_like(engine.model.head.bias)
    engine.step()


BEHIND_ITS_BACK = {
    "clipping by norm": lambda engine: nn.utils.clip_grad_norm_(engine.model.parameters(), 1e-9),
    "clipping by value": lambda engine: nn.utils.clip_grad_value_(engine.model.parameters(), 1e-9),
    "an edit": halve,
    "a read": lambda engine: engine.model.entry.weight.grad.norm(),
    "an optimizer of one's own": lambda engine: torch.optim.AdamW(engine.model.parameters(), lr=0.1).step(),
    "clipping what the engine's optimizer has": lambda engine: nn.utils.clip_grad_norm_(updated_by(engine), 1e-9),
    "a backward of one's own": lambda engine: loss_of(engine.model(my_rows(0))).backward(),
    "zeros": lambda engine: engine.model.zero_grad(set_to_none=False),
    "no gradients": lambda engine: (clear(engine), engine.step()),
    "another gradient": replace,
}


def test_what_would_do_nothing_to_the_engines_gradients_is_refused_and_the_training_goes_on(clusters):
    def reaching(engine, _rank):
        sentences = {}
        for name, action in BEHIND_ITS_BACK.items():
            engine.backward(loss_of(engine.model(my_rows(0))))
            sentences[name] = sentence_of(lambda action=action: action(engine))
            engine.zero_grad()
        before = engine.state_dict()
        step(engine, 0)
        after_a_step = sentence_of(lambda: BEHIND_ITS_BACK["an optimizer of one's own"](engine))
        untouched = distance(before, make("plain").state_dict()) == 0
        return sentences, after_a_step, untouched, engine.state_dict()

    reference = plain_steps(1)
    for ends in clusters(2).run(on_every_stage, reaching):
        for stage in STAGES:
            sentences, after_a_step, untouched, state = ends[stage]
            told = {name for name, sentence in sentences.items() if "engine.step()" in sentence}
            assert sentences.keys() - told <= {"a backward of one's own"}
            assert "second backward" in sentences["a backward of one's own"] or stage != "zero3"
            assert "engine.step()" in after_a_step
            assert untouched
            assert distance(state, reference) <= 1e-6


def test_zero_grad_drops_micro_batches_in_every_stage_and_so_does_that_of_the_engines_optimizer(clusters):
    def discarding(engine, _rank):
        for number, drop in enumerate((engine.zero_grad, engine.optimizer.zero_grad)):
            engine.optimizer.zero_grad()  # as loops begin, with nothing to drop
            with engine.accumulate():
                engine.backward(loss_of(engine.model(my_rows(7))) * 100)
                drop()
                engine.backward(loss_of(engine.model(my_rows(8))) * 100)
            drop()
            engine.backward(loss_of(engine.model(my_rows(9))))
            drop()  # the last one, too
            step(engine, number)
        return engine.state_dict()

    assert_all_close(clusters(2).run(on_every_stage, discarding), plain_steps(2))


def test_the_models_zero_grad_drops_a_micro_batch_or_is_refused(clusters):
    def discarding(engine, _rank):
        with engine.accumulate():
            engine.backward(loss_of(engine.model(my_rows(7))) * 100)
        engine.model.zero_grad()
        try:
            step(engine, 0)
        except RuntimeError as error:
            return str(error)
        return engine.state_dict()

    reference = plain_steps(1)
    for ends in clusters(2).run(on_every_stage, discarding):
        assert all(distance(ends[stage], reference) <= 1e-6 for stage in STAGES[:2])
        assert all("'entry.weight' was cleared" in ends[stage] and DROP in ends[stage] for stage in STAGES[2:])


def test_a_hook_on_a_finished_gradient_is_called_with_this_ranks_own_and_may_change_it(clusters):
    def hooked(engine, rank):
        seen = {}
        for name, parameter in engine.model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: seen.update({name: p.grad.clone()}))
            parameter.register_post_accumulate_grad_hook(clamp)
        engine.model.head.bias.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        step(engine, 0)
        return seen, engine.state_dict()

    replicas, reference = [make("plain"), make("plain")], make("plain")
    for replica, mine in zip(replicas, batch(0).chunk(2), strict=True):
        loss_of(replica(mine)).backward()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            mean = sum(replica.get_parameter(name).grad.clamp(-1e-3, 1e-3) for replica in replicas) / 2
            parameter.sub_(0.1 * mean if name != "head.bias" else 0)
    for replica, ends in zip(replicas, clusters(2).run(on_every_stage, hooked), strict=True):
        local = {name: parameter.grad for name, parameter in replica.named_parameters()}
        for stage in STAGES:
            seen, state = ends[stage]
            assert distance(seen, local) <= 1e-6, stage
            assert distance(state, reference.state_dict()) <= 1e-6, stage


@pytest.mark.parametrize("stage", STAGES)
def test_many_micro_batches_add_up_in_reduce_dtype(clusters, stage):
    many = 32  # added up in bf16, they would be off by a hundred times the tolerance

    def accumulate():
        options = {"precision": "bf16", "reduce_dtype": torch.float32}
        engine = ENGINES[stage](make("plain"), torch.optim.SGD, lr=1.0, **options)
        start = engine.state_dict()
        for _ in range(many - 1):
            with engine.accumulate():
                engine.backward(loss_of(engine.model(my_rows(0))))
        engine.backward(loss_of(engine.model(my_rows(0))))
        engine.step()
        once = ENGINES[stage](make("plain"), torch.optim.SGD, lr=1.0, **options)
        step(once, 0)
        return start, engine.state_dict(), once.state_dict()

    for start, end, one in clusters(2).run(accumulate):
        for name in start:
            torch.testing.assert_close(end[name] - start[name], many * (one[name] - start[name]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("own", [False, True])
def test_it_does_not_matter_when_a_rank_frees_the_graph_of_a_forward_that_came_to_nothing(clusters, own):
    def collecting(engine, rank):
        import gc

        gc.disable()
        for number in range(3):
            cycle = [loss_of(engine.model(my_rows(number)))]  # its graph goes only when garbage is collected
            cycle.append(cycle)
            del cycle
            if rank == 1:
                gc.collect()
            loss = loss_of(engine.model(my_rows(number)))
            loss.backward() if own else engine.backward(loss)
            engine.step()
        gc.enable()
        return engine.state_dict()

    one, other = (ends["zero3"] for ends in clusters(2).run(on_every_stage, collecting, stages=["zero3"]))
    assert distance(one, other) == 0


def test_what_autograd_is_asked_for_may_be_set_as_gradients_and_the_training_goes_on(clusters):
    def asking(engine, _rank):
        sentences = set()
        for number in range(3):
            parameters = list(engine.model.parameters())
            gradients = torch.autograd.grad(loss_of(engine.model(my_rows(number))), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            sentences.add(sentence_of(engine.step))
            engine.zero_grad()
            step(engine, number)
        return sentences, engine.state_dict()

    for results in clusters(2).run(on_every_stage, asking):
        assert {sentence.split(":")[0] for said, _ in results.values() for sentence in said} == {
            "step() without gradients"
        }
        assert_all_close([{stage: state for stage, (_, state) in results.items()}], plain_steps(3))


class Regrouping(torch.optim.SGD):
    """Makes its groups anew within each step."""

    def step(self, closure=None):
        groups, self.param_groups = self.param_groups, []
        for group in groups:
            self.add_param_group(group)
        return super().step(closure)


def test_an_optimizer_may_make_its_groups_anew_within_its_step_and_there_alone(clusters):
    def training():
        ends, sentences = {}, set()
        for stage in STAGES:
            engine = ENGINES[stage](make("plain"), Regrouping, lr=0.1)
            for number in range(3):
                step(engine, number)
            others = {"params": [nn.Parameter(torch.ones(1))]}
            sentences.add(sentence_of(lambda engine=engine, others=others: engine.optimizer.add_param_group(others)))
            ends[stage] = engine.state_dict()
        return ends, sentences

    ends, sentences = zip(*clusters(2).run(training), strict=True)
    assert_all_close(ends, plain_steps(3))
    for said in sentences:
        assert [each.split(",")[0] for each in said] == ["an engine's optimizer takes no further parameters"]
