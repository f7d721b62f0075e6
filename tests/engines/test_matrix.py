"""The matrix: every own stage x every option x N = 1 to 4 ends where one process ends that takes the same rows.

A case is a line of `CASES`; all cases of one N are trained in a few calls, because a call costs more than a tiny model.
The one process takes each rank's rows alone and adds up gradients as a reduction does, in the same order and precision,
so that bf16 is compared as sharply as fp32.
"""

import inspect
import itertools

import pytest
import torch
from awkward import batch, distance, loss_fn, make, my_rows, shard_of
from torch import nn

from zerolab.engines import ENGINES
from zerolab.theory import STAGES

SIZES = [1, 2, 3, 4]
STEPS = 3
FROZEN = ("blocks.1", "blocks.3.0")  # a whole unit, and a part of one
SGD = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}, 1e-6)
ADAMW = (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}, 1e-5)  # which divides, and so magnifies rounding
BF16 = torch.bfloat16
DTYPES = {"fp32": torch.float32, "bf16": BF16, "fp16": torch.float16}


def is_thin(_name, parameter):
    """Whether a parameter is a bias or a norm's, which take no weight decay in the case of parameter groups."""
    return parameter.ndim < 2


def is_large(name, parameter):
    """Whether a parameter is a matrix, or one of the frozen ones."""
    return parameter.ndim > 1 or name.startswith(FROZEN)


OPTIONS = {
    "plain": {},
    "bf16": {"precision": "bf16"},
    "bf16, added up in fp32": {"precision": "bf16", "reduce_dtype": torch.float32},
    "fp16": {"precision": "fp16", "clip": True},
    "fp16, added up in fp32": {"precision": "fp16", "reduce_dtype": torch.float32},
    "fp32, added up in bf16": {"reduce_dtype": BF16},
    "no overlap": {"overlap": False},
    "offload": {"offload": True},
    "units by hand": {"units": ["blocks.0", "blocks.2"]},
    "parameter groups": {"groups": True},
    "replicated": {"replicate": is_thin},
    "replicated, in groups": {"replicate": is_large, "groups": True, "micro": 2, "clip": True, "resume": True},
    "accumulation": {"micro": 2},
    "clipping": {"clip": True},
    "a schedule": {"schedule": True},
    "saved and loaded": {"resume": True},
}
ZERO3_OPTIONS = {
    "kept after forward": {"release_after_forward": False},
    "no prefetch": {"prefetch": 0},
    "far prefetch": {"prefetch": 3},
    "kept, no prefetch, no overlap": {"release_after_forward": False, "prefetch": 0, "overlap": False, "micro": 2},
}
TOGETHER = {
    f"together, overlap {overlap}, offload {offload}, clip {clip}, micro {micro}": {
        "overlap": overlap, "offload": offload, "clip": clip, "micro": micro, "groups": True, "resume": True
    }
    for overlap, offload, clip, micro in itertools.product((True, False), (True, False), (True, False), (1, 2))
}  # fmt: skip
CASES = {**OPTIONS, **ZERO3_OPTIONS, **TOGETHER}
OF_THE_LOOP = {"groups", "micro", "clip", "schedule", "resume"}  # what is no keyword of an engine

OF_THE_NUMBERS = {"precision", "reduce_dtype", "groups", "micro", "clip", "schedule"}  # what one process must know


def train(stage, case, optimizer_cls, keywords):
    """This rank's three steps of one case on one stage; the whole model that it ends with."""

    options = CASES[case]
    own = {name: value for name, value in options.items() if name not in OF_THE_LOOP}
    groups = [(is_thin, {"weight_decay": 0.0})] if options.get("groups") else ()

    def fresh():
        return ENGINES[stage](make(FROZEN), optimizer_cls, param_groups=groups, **own, **keywords)

    engine = fresh()
    schedule = torch.optim.lr_scheduler.StepLR(engine.optimizer, 1, 0.5) if options.get("schedule") else None
    for step in range(STEPS):
        *earlier, last = [my_rows(10 * step + micro) for micro in range(options.get("micro", 1))]
        with engine.accumulate():
            for rows in earlier:
                engine.training_step(*rows, loss_fn)
        engine.backward(engine.scaler.scale(loss_fn(engine.model(last[0]), last[1])))
        if options.get("clip"):
            engine.scaler.unscale_(engine.optimizer)
            engine.clip_grad_norm_(0.1)
        if engine.scaler.is_enabled():
            engine.scaler.step(engine.optimizer)
            engine.scaler.update()
        else:
            engine.step()
        if schedule:
            schedule.step()
        if options.get("resume") and step == 1:
            states = engine.state_dict(), engine.optimizer_state_dict()
            engine = fresh()
            engine.load_state_dict(states[0])
            engine.load_optimizer_state_dict(states[1])
    return engine.state_dict()


def train_alone(options, optimizer_cls, keywords, parts):
    """The same in one process that takes the rows of each of `parts` ranks alone."""
    torch.set_num_threads(1)
    model, dtype = make(FROZEN), DTYPES[options.get("precision", "fp32")]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, enabled=dtype == torch.float16)
    for parameter in model.parameters():  # a frozen one has no fp32 master
        parameter.data = parameter.data if parameter.requires_grad else parameter.data.to(dtype)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    thin = [p for p in trained.values() if options.get("groups") and p.ndim < 2]
    rest = [p for p in trained.values() if not any(p is other for other in thin)]
    groups = [{"params": thin, "weight_decay": 0.0}] * bool(thin) + [{"params": rest}]
    optimizer = optimizer_cls(groups, **keywords)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if options.get("schedule") else None
    for step in range(STEPS):
        for micro in range(options.get("micro", 1)):
            for name, gradient in mean_gradients(model, 10 * step + micro, options, parts, scaler).items():
                before = trained[name].grad
                trained[name].grad = gradient if before is None else before + gradient
        if options.get("clip"):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(trained.values(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if schedule:
            schedule.step()
    return model.state_dict()


def mean_gradients(model, step, options, parts, scaler):
    """The mean of the ranks' gradients, each of its precision, added up in rank order in the reduction's dtype."""
    total, dtype = {}, DTYPES[options.get("precision", "fp32")]
    for rank in range(parts):
        replica = make(FROZEN)
        replica.load_state_dict(model.state_dict())
        for parameter in replica.parameters():
            parameter.data = parameter.data.to(dtype)
        tokens, targets = (shard_of(tensor, rank, parts) for tensor in batch(step))
        scaler.scale(loss_fn(replica(tokens), targets)).backward()
        for name, parameter in replica.named_parameters():
            if parameter.grad is not None:  # one that no rank has a gradient for is left alone
                gradient = parameter.grad.to(options.get("reduce_dtype") or dtype)
                total[name] = total[name] + gradient if name in total else gradient
    return {name: (gradient / parts).float() for name, gradient in total.items()}


def distances(stages, optimizer_cls, keywords, references):
    """How far each stage of each case ends from its reference on this rank."""
    torch.set_num_threads(1)  # as many as the reference had: in bf16 a product's last bit depends on it
    return {
        (case, stage): distance(train(stage, case, optimizer_cls, keywords), reference)
        for case, reference in references.items()
        for stage in stages
    }


def assert_all_agree(cluster, world_size, cases, optimizer, stages=STAGES):
    optimizer_cls, keywords, bound = optimizer
    alone = {}  # many options change nothing about what is computed
    references = {}
    for case in cases:
        options = {name: value for name, value in CASES[case].items() if name in OF_THE_NUMBERS}
        key = tuple(options.items())
        if key not in alone:
            alone[key] = train_alone(options, optimizer_cls, keywords, world_size)
        references[case] = alone[key]
    start = make(FROZEN).state_dict()
    assert all(distance(reference, start) > 100 * bound for reference in alone.values())  # something was learned
    for found in cluster.run(distances, stages, optimizer_cls, keywords, references):
        assert len(found) == len(cases) * len(stages)
        assert {cell: far for cell, far in found.items() if not far <= bound} == {}


@pytest.mark.slow
@pytest.mark.parametrize("world_size", SIZES)
def test_every_option_on_every_stage_ends_where_one_process_ends(clusters, world_size):
    assert_all_agree(clusters(world_size), world_size, OPTIONS, SGD)
    assert_all_agree(clusters(world_size), world_size, ZERO3_OPTIONS, SGD, stages=["zero3"])


@pytest.mark.slow
def test_every_option_once_with_adamw_and_weight_decay(clusters):
    assert_all_agree(clusters(3), 3, OPTIONS, ADAMW)
    assert_all_agree(clusters(3), 3, ZERO3_OPTIONS, ADAMW, stages=["zero3"])


def together(world_size):
    """Every second case, of which any three options still take all their values; the other half is run by N + 1."""
    four = ("overlap", "offload", "clip", "micro")
    return [case for case in TOGETHER if (sum(CASES[case][option] for option in four) + world_size) % 2]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_options_go_together_overlap_offload_clipping_accumulation_groups_and_checkpoints(clusters, world_size):
    assert_all_agree(clusters(world_size), world_size, together(world_size), SGD)


def test_every_keyword_of_every_engine_is_in_the_matrix():
    used = {name for options in CASES.values() for name in options} | {"param_groups"}  # the case "parameter groups"
    for stage in STAGES:
        for base in ENGINES[stage].__mro__[:-1]:
            named = inspect.signature(base).parameters.values()
            assert {parameter.name for parameter in named if parameter.kind == parameter.KEYWORD_ONLY} <= used
