"""What would give wrong numbers is refused, with a sentence."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from zerolab import RankError
from zerolab.engines import ENGINES
from zerolab.theory import STAGES


class LayerWise(torch.optim.Optimizer):
    """Scales each tensor's update by the tensor's norm, as LAMB does: not element by element."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(group["lr"] * parameter.norm() * parameter.grad)


class Clipping(torch.optim.Optimizer):
    """Clips by the norm of all gradients within its step, as some do: on shards each rank would have another norm."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    def step(self):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(self.param_groups[0]["lr"] * parameter.grad / norm)


class Passing(torch.optim.AdamW):
    """Passes its keywords on without naming them."""

    def __init__(self, params, **keywords):
        super().__init__(params, **keywords)


ELEMENT_WISE = [getattr(torch.optim, name) for name in ("Adadelta", "Adagrad", "Adam", "Adamax", "ASGD", "NAdam")]
ELEMENT_WISE += [getattr(torch.optim, name) for name in ("RAdam", "RMSprop", "Rprop", "SGD")]


def _sentence(clusters, work, world_size=1):
    with pytest.raises(RankError) as caught:
        clusters(world_size).run(work)
    # The traceback quotes the lines of this file, and in some of them the sentence stands as what is expected.
    return "\n".join(line for line in str(caught.value).splitlines() if "_call(" not in line)


def _mlp():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))


def _engine(stage="zero1", optimizer_cls=torch.optim.SGD, model=None, **options):
    return ENGINES[stage](model or _mlp(), optimizer_cls, **options)


@pytest.mark.parametrize("stage", STAGES)
def test_ranks_that_freeze_different_blocks_are_refused(clusters, stage):
    def freeze_my_block():
        import torch.distributed as dist

        model = _mlp()
        model[dist.get_rank()].requires_grad_(False)
        _engine(stage, model=model)

    message = _sentence(clusters, freeze_my_block, 2)
    assert "which parameters are frozen, and their groups and dtypes, differ between ranks (rank 0: 0 frozen" in message


@pytest.mark.parametrize("where", ["forward", "loss"])
def test_ranks_whose_losses_need_different_units_are_refused_by_zero3(clusters, where):
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            import torch.distributed as dist

            return x if where == "forward" and dist.get_rank() == 1 else self.inner(x)

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Dropping(), nn.Linear(4, 4)])

        def forward(self, x):
            return [block(x) for block in self.blocks]

    def differing():
        import torch.distributed as dist

        x = torch.ones(2, 4, requires_grad=True)
        outputs = (engine := _engine("zero3", model=Towers())).model(x)
        engine.backward(
            outputs[1].sum() if where == "loss" and dist.get_rank() == 1 else outputs[0].sum() + outputs[1].sum()
        )

    message = _sentence(clusters, differing, 2)
    assert "the units that a forward used and a backward needs differ between ranks" in message
    assert "blocks.0" in message


def test_an_optimizer_that_is_not_element_wise_is_found_by_trying_it(clusters):
    for optimizer_cls, lr in ((LayerWise, 0.1), (LayerWise, 1e-6), (LayerWise, 0.0), (Clipping, 0.1)):
        assert f"{optimizer_cls.__name__} updates a matrix differently from its rows" in _sentence(
            clusters, partial(_engine, optimizer_cls=optimizer_cls, lr=lr)
        )


@pytest.mark.parametrize("kind", [*ELEMENT_WISE, Passing])
def test_an_element_wise_optimizer_passes_that_trial_at_any_learning_rate(clusters, kind):
    def trained(kind):
        thin = [(lambda _name, parameter: parameter.ndim < 2, {"lr": 0.0})]
        for lr in (0.0, 1e-7, 0.1, 100.0):
            _engine(optimizer_cls=kind, lr=lr, param_groups=thin)
        return kind.__name__

    assert clusters(1).run(trained, kind) == [kind.__name__]


def _call(action):
    """A refused call on an engine that has made one step."""

    def work():
        engine = _engine(optimizer_cls=torch.optim.AdamW)
        engine.training_step(torch.ones(2, 4), torch.ones(2, 4), nn.functional.mse_loss)
        action(engine)

    return work


def _accumulate_and(action):
    def work(engine):
        with engine.accumulate():
            engine.backward(engine.model(torch.ones(2, 4)).sum())
        action(engine)

    return work


@pytest.mark.parametrize(
    ("work", "sentence"),
    [
        (_call(_accumulate_and(lambda engine: engine.step())), "step() without gradients: call backward() first"),
        (_call(_accumulate_and(lambda engine: engine.clip_grad_norm_(1.0))), "no gradients to clip: call backward()"),
        (_call(lambda engine: engine.clip_grad_norm_(-1.0)), "max_norm is -1.0: give a norm above 0"),
        (_call(lambda engine: engine.load_state_dict(None)), "the state is not a dict of tensors"),
        (_call(lambda engine: engine.load_state_dict({"0.weight": 1})), "the state is not a dict of tensors"),
        (_call(lambda engine: engine.load_optimizer_state_dict({})), "has no 'state' and 'param_groups'"),
        (
            _call(lambda engine: engine.load_optimizer_state_dict(_engine().optimizer_state_dict())),
            "the state does not set AdamW's 'amsgrad'",
        ),
        (_call(lambda engine: engine.save("/no/such/folder/x")), "cannot write '/no/such/folder/x': its folder"),
        (_call(lambda engine: engine.save("/")), "cannot write '/': it is a folder"),
        (_call(lambda engine: engine.backward(engine.model(torch.ones(2, 4)))), "the loss has shape (2, 4): reduce it"),
        (
            _call(
                lambda engine: engine.optimizer.add_param_group(param_group={"params": [nn.Parameter(torch.ones(1))]})
            ),
            "an engine's optimizer takes no further parameters, for no backward would average their gradients",
        ),
        (lambda: _engine(overlap="no"), "overlap is 'no': pass True or False"),
        (lambda: _engine(prefetch=2), "prefetch=2 is for Zero3, which alone releases units: leave it out"),
        (lambda: _engine("zero3", prefetch=-1), "prefetch is -1: give a whole number of units, 0 or more"),
        (lambda: _engine("zero3", release_after_forward=None), "release_after_forward is None: pass True or False"),
        (lambda: _engine(param_groups=None), "param_groups is None: pass a list"),
        (lambda: _engine(reduce_dtype="bf16"), "reduce_dtype is 'bf16': pass a torch dtype"),
        (lambda: _engine(units="0"), "units is the string '0': pass a list of module names"),
        (lambda: _engine(param_groups=[{"params": []}]), "pass pairs of (test of name and parameter, keywords)"),
        (lambda: _engine(param_groups=[(lambda *_: True, {"weight_decy": 0})]), "SGD does not take 'weight_decy'"),
    ],
)
def test_wrong_use_is_refused_with_a_sentence(clusters, work, sentence):
    assert sentence in _sentence(clusters, work)


def test_gradients_are_added_up_in_a_floating_point_type_alone(clusters):
    for dtype in (torch.int32, torch.complex64, torch.float8_e5m2):
        said = _sentence(clusters, partial(_engine, reduce_dtype=dtype))
        assert f"reduce_dtype is {dtype}, in which no gradient can be added up: pass torch.float32" in said


def test_an_update_that_makes_nan_is_not_taken_for_one_of_whole_matrices(clusters):
    def rate():
        return _engine("zero1", torch.optim.AdamW, lr=math.inf).optimizer.defaults["lr"]

    assert clusters(2).run(rate) == [math.inf] * 2


def test_a_state_whose_groups_hold_other_parameters_is_refused(clusters):
    thin, thick = (lambda _name, p: p.ndim < 2, {"lr": 0.1}), (lambda _name, p: p.ndim > 1, {"lr": 0.2})

    def swapped():
        saved = _engine(param_groups=[thin, thick]).optimizer_state_dict()
        _engine(param_groups=[thick, thin]).load_optimizer_state_dict(saved)

    remedy = "make the engine with the same optimizers and param_groups, in the same order"
    assert remedy in _sentence(clusters, swapped)


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_that_is_bf16_already_gets_fp32_masters_too(clusters, stage):
    def dtypes():
        engine = _engine(stage, torch.optim.AdamW, _mlp().to(torch.bfloat16), precision="bf16")
        engine.training_step(torch.ones(2, 4), torch.ones(2, 4), lambda out, to: ((out.float() - to) ** 2).mean())
        states = [value for state in engine.optimizer.state.values() for value in state.values()]
        return {value.dtype for value in [*states, *engine.state_dict().values()]}

    assert clusters(2).run(dtypes) == [{torch.float32}] * 2


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (torch.optim.Adam, "decoupled_weight_decay is True in the state and False in the engine: load a state of"),
        (torch.optim.RAdam, "the state sets 'amsgrad', which RAdam does not know: load a state of the same optimizer"),
        (
            torch.optim.Adamax,
            "the state sets 'amsgrad', which Adamax does not know: load a state of the same",
        ),
    ],
)
def test_the_state_of_a_kindred_optimizer_is_refused(clusters, kind, sentence):
    def load(kind):
        engine, other = _engine(optimizer_cls=torch.optim.AdamW), _engine(optimizer_cls=kind)
        engine.training_step(torch.ones(2, 4), torch.ones(2, 4), nn.functional.mse_loss)
        other.load_optimizer_state_dict(engine.optimizer_state_dict())

    assert sentence in _sentence(clusters, partial(load, kind))


def test_what_a_schedule_notes_beside_the_settings_is_no_other_optimizers(clusters):
    def load():
        engine, other = _engine(optimizer_cls=torch.optim.AdamW), _engine(optimizer_cls=torch.optim.AdamW)
        torch.optim.lr_scheduler.OneCycleLR(engine.optimizer, max_lr=0.1, total_steps=10)
        engine.training_step(torch.ones(2, 4), torch.ones(2, 4), nn.functional.mse_loss)
        other.load_optimizer_state_dict(engine.optimizer_state_dict())
        return other.optimizer.param_groups[0]["max_lr"]

    assert clusters(1).run(load) == [0.1]
