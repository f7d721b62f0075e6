"""fp16 and the scale of its loss: torch's own scalers, used as torch's users do, on every stage and over real ranks."""

import pytest
import torch
from test_any_step import my_rows, on_every_stage, plain_steps, sentence_of
from torch import nn
from zoo import STAGES, batch, distance, loss_of, make

from zerolab.engines import ENGINES

ADAMW = {"lr": 0.01, "weight_decay": 0.1}
STEPS, SPOILT = 4, 1  # and the step in which a gradient overflows
SCALERS = ["GradScaler", "ShardedGradScaler"]


def make_scaler(kind="GradScaler", **keywords):
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return {"GradScaler": torch.amp.GradScaler, "ShardedGradScaler": ShardedGradScaler}[kind]("cpu", **keywords)


def spoil(model):
    """An overflow in a single number of a gradient: in ZeRO it is in the shard of one rank alone."""

    def overflow(gradient):
        gradient = gradient.clone()
        gradient.view(-1)[-1] = float("inf")
        return gradient

    return model.head.bias.register_hook(overflow)


def train(engine, scaler, clip=None, *, own_backward=False):
    """Steps of a loop as torch's documentation has it, one of them spoilt on rank 0; what there is after each."""
    ends = []
    for step in range(STEPS):
        handle = spoil(engine.model) if step == SPOILT and engine.rank == 0 else None
        loss = scaler.scale(loss_of(engine.model(my_rows(step))))
        loss.backward() if own_backward else engine.backward(loss)
        if clip:
            scaler.unscale_(engine.optimizer)
            engine.clip_grad_norm_(clip)
        scaler.step(engine.optimizer)
        scaler.update()
        if handle:
            handle.remove()
        counts = {int(entries["step"]) for entries in engine.optimizer.state.values()}
        ends.append((engine.state_dict(), scaler.get_scale(), counts))
    return ends


def train_alone(scaler, clip=None):
    """The same in one process, with fp32 parameters."""
    model, ends = make("plain"), []
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    for step in range(STEPS):
        handle = spoil(model) if step == SPOILT else None
        scaler.scale(loss_of(model(batch(step)))).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if handle:
            handle.remove()
        ends.append((model.state_dict(), scaler.get_scale()))
        ends[-1] = ({name: value.clone() for name, value in ends[-1][0].items()}, ends[-1][1])
    return ends


def engine_of(stage, **keywords):
    return ENGINES[stage](make("plain"), torch.optim.AdamW, **ADAMW, **keywords)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_torchs_scalers_train_as_in_one_process_and_an_overflow_in_one_shard_skips_the_step_on_all(
    clusters, world_size, clip
):
    def training():
        cases = [(stage, kind, fused) for stage in STAGES for kind in SCALERS for fused in (False, True)]
        return {
            case: train(engine_of(case[0], fused=case[2]), make_scaler(case[1], growth_interval=2), clip)
            for case in cases
        }

    alone = train_alone(make_scaler(growth_interval=2), clip)
    assert [scale for _, scale in alone] == [2.0**16, 2.0**15, 2.0**15, 2.0**16]
    for cases in clusters(world_size).run(training):
        for case, ends in cases.items():
            assert [scale for _, scale, _ in ends] == [scale for _, scale in alone], case
            assert [counts for *_, counts in ends] == [{1}, {1}, {2}, {3}], case
            assert distance(ends[SPOILT][0], ends[SPOILT - 1][0]) == 0, case
            far = [distance(state, reference) for (state, *_), (reference, _) in zip(ends, alone, strict=True)]
            assert max(far) <= 1e-5, case


@pytest.mark.parametrize("options", [{}, {"reduce_dtype": torch.float32}, {"offload": True}])
def test_fp16_over_fp32_masters_skips_alike_and_stays_near_fp32(clusters, options):
    def training():
        return {stage: train(engine_of(stage, precision="fp16", **options), make_scaler(growth_interval=2))
                for stage in STAGES}  # fmt: skip

    for stages in clusters(2).run(training):
        for stage, ends in stages.items():
            # The loss is fp16, too, and twice its largest power of two is the gradient of it: the first step is lost.
            assert [scale for _, scale, _ in ends] == [2.0**15, 2.0**14, 2.0**14, 2.0**15], stage
            assert [counts for *_, counts in ends] == [set(), set(), {1}, {2}], stage
            assert {value.dtype for value in ends[-1][0].values()} == {torch.float32}
            assert all(torch.isfinite(value).all() for value in ends[-1][0].values())


@pytest.mark.parametrize("clip", [None, 0.01])
def test_in_fp16_a_loops_own_backward_of_a_scaled_loss_is_the_engines_to_the_last_bit_skipped_steps_too(clusters, clip):
    def training():
        return {
            stage: [
                train(engine_of(stage, precision="fp16"), make_scaler(growth_interval=2), clip, own_backward=own)
                for own in (False, True)
            ]
            for stage in STAGES
        }

    for stages in clusters(2).run(training):
        for stage, (by_engine, by_loop) in stages.items():
            assert [counts for *_, counts in by_loop] == [set(), set(), {1}, {2}], stage
            for (state, *known), (own_state, *own_known) in zip(by_engine, by_loop, strict=True):
                assert known == own_known, stage
                assert distance(state, own_state) == 0, stage


def test_after_unscale_gradients_and_clipping_see_the_gradients_themselves(clusters):
    def looking(engine, _rank):
        scaler = make_scaler()
        engine.backward(scaler.scale(loss_of(engine.model(my_rows(0)))))
        scaler.unscale_(engine.optimizer)
        seen = {name: mean.clone() for name, mean in engine.gradients().items()}
        for mean in engine.gradients().values():
            mean.mul_(2)
        norm = engine.clip_grad_norm_(1e9)
        scaler.step(engine.optimizer)
        return seen, float(norm), engine.state_dict()

    reference = make("plain")
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    loss_of(reference(batch(0))).backward()
    whole = {name: parameter.grad.clone() for name, parameter in reference.named_parameters()}
    for parameter in reference.parameters():
        parameter.grad *= 2
    norm = float(nn.utils.clip_grad_norm_(reference.parameters(), 1e9))
    optimizer.step()
    ranks = clusters(2).run(on_every_stage, looking)
    for stage in STAGES:
        for name, gradient in whole.items():
            parts = [ends[stage][0][name].flatten() for ends in ranks if name in ends[stage][0]]
            found = parts[0] if stage == "ddp" else torch.cat(parts)
            torch.testing.assert_close(found, gradient.flatten(), rtol=1e-4, atol=1e-6)
        for ends in ranks:
            assert ends[stage][1] == pytest.approx(norm, rel=1e-5)
            assert distance(ends[stage][2], reference.state_dict()) <= 1e-6, stage


def test_training_step_scales_by_itself_and_skips_what_overflowed(clusters):
    def training(engine, rank):
        rows, before = my_rows(0), engine.state_dict()
        handle = spoil(engine.model) if rank == 0 else None
        losses = [engine.training_step(rows, None, lambda outputs, _: loss_of(outputs))]
        after = distance(before, engine.state_dict()), engine.scaler.get_scale()
        if handle:
            handle.remove()
        with engine.accumulate():
            engine.training_step(rows, None, lambda outputs, _: loss_of(outputs) / 2)
        losses += [engine.training_step(rows, None, lambda outputs, _: loss_of(outputs) / 2)]
        moved = distance(before, engine.state_dict())
        return [float(loss) for loss in losses], after, engine.scaler.get_scale(), moved

    for ends in clusters(2).run(on_every_stage, training, precision="fp16"):
        for stage in STAGES:
            losses, skipped, scale, moved = ends[stage]
            assert losses[1] == pytest.approx(losses[0] / 2, rel=1e-2), stage  # neither is scaled
            assert skipped == (0, 2.0**14), stage
            assert scale == 2.0**14
            assert moved > 0


def test_gradients_that_fp16_cannot_hold_train_only_with_a_scale(clusters):
    def training(engine, _rank):
        before = engine.state_dict()["weight"]
        for scaler in (make_scaler(enabled=False), engine.scaler):
            loss = engine.model(torch.ones(2, 4)).float().mean() * 1e-8
            engine.backward(scaler.scale(loss))
            scaler.step(engine.optimizer)
            yield engine.state_dict()["weight"] - before

    def both(engine, rank):
        return list(training(engine, rank))

    def linear():
        model = nn.Linear(4, 4, bias=False)
        nn.init.zeros_(model.weight)
        return model

    for ends in clusters(2).run(on_every_stage, both, model=linear, precision="fp16"):
        for stage in STAGES:
            unscaled, scaled = ends[stage]
            assert not unscaled.any(), stage
            torch.testing.assert_close(scaled, torch.full((4, 4), -0.1 * 1e-8 / 4), rtol=0.05, atol=0)


@pytest.mark.parametrize("stage", STAGES)
def test_the_scale_goes_on_where_it_was_saved_in_fp16_alone(clusters, tmp_path, stage):
    path = str(tmp_path / "run.safetensors")

    def scale_of(engine):
        return engine.scaler.state_dict()

    def saving():
        engine = engine_of(stage, precision="fp16")
        engine.scaler = make_scaler(init_scale=64.0, growth_interval=3)
        for step in range(4):
            engine.training_step(my_rows(step), None, lambda outputs, _: loss_of(outputs))
        engine.save(path)
        return scale_of(engine)

    def loading(precision):
        engine = engine_of(stage, precision=precision)
        engine.load(path)
        if precision == "fp16":
            engine.training_step(my_rows(4), None, lambda outputs, _: loss_of(outputs))
        return scale_of(engine)

    (saved, *_) = clusters(3).run(saving)
    assert (saved["scale"], saved["_growth_tracker"]) == (128.0, 1)
    assert clusters(2).run(loading, "fp16") == [{**saved, "_growth_tracker": 2}] * 2
    assert clusters(2).run(loading, "fp32") == [{}] * 2


def test_the_step_of_the_engines_optimizer_is_the_engines(clusters):
    def stepping(engine, _rank):
        schedule = torch.optim.lr_scheduler.StepLR(engine.optimizer, 1, 0.5)
        early = sentence_of(engine.optimizer.step)
        for number in range(3):
            engine.backward(loss_of(engine.model(my_rows(number))))
            with_closure = sentence_of(lambda: engine.optimizer.step(lambda: 0.0))
            engine.optimizer.step()
            engine.optimizer.zero_grad()
            schedule.step()
        return early, with_closure, engine.state_dict()

    reference = make("plain")
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for number in range(3):
        loss_of(reference(batch(number))).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    for ends in clusters(2).run(on_every_stage, stepping):
        for stage in STAGES:
            early, with_closure, state = ends[stage]
            assert "step() without gradients: call backward() first" in early
            assert "takes no closure" in with_closure
            assert distance(state, reference.state_dict()) <= 1e-6, stage


def test_a_scaler_without_gradients_is_refused_in_a_sentence_and_the_training_goes_on(clusters):
    def too_early(engine, _rank):
        scaler = make_scaler()
        scaler.scale(loss_of(engine.model(my_rows(0))))
        sentences = [sentence_of(lambda: scaler.step(engine.optimizer))]
        engine.backward(loss_of(engine.model(my_rows(0))))
        engine.zero_grad()
        sentences.append(sentence_of(lambda: make_and_unscale(engine)))
        engine.backward(loss_of(engine.model(my_rows(0))))
        engine.step()
        return sentences, engine.state_dict()

    def make_and_unscale(engine):
        scaler = make_scaler()
        scaler.scale(torch.ones(()))
        scaler.unscale_(engine.optimizer)

    reference = plain_steps(1)
    for ends in clusters(2).run(on_every_stage, too_early):
        for stage in STAGES:
            (early, dropped), state = ends[stage]
            assert "step() without gradients: call backward() first" in early
            assert "no gradients to unscale: call backward() first" in dropped
            assert distance(state, reference) <= 1e-6


def test_an_engine_that_is_dropped_leaves_nothing_behind(clusters):
    def dropping(engine, _rank):
        import weakref

        engine.backward(loss_of(engine.model(my_rows(0))))
        return weakref.ref(engine.optimizer), weakref.ref(engine.flats[0].owned), weakref.ref(engine)

    def left():
        import gc

        found = on_every_stage(dropping)
        gc.collect()
        return {stage: [known() is None for known in references] for stage, references in found.items()}

    assert clusters(2).run(left) == [dict.fromkeys(STAGES, [True] * 3)] * 2


def test_in_fp16_gradients_that_are_still_scaled_are_neither_clipped_nor_shown(clusters):
    def clipping(engine, _rank):
        said = []
        engine.backward(loss_of(engine.model(my_rows(0))))  # of a loop that scales nothing there is nothing to divide
        engine.clip_grad_norm_(1.0)
        engine.zero_grad()
        for _ in range(2):
            engine.backward(engine.scaler.scale(loss_of(engine.model(my_rows(0)))))
            for use in (lambda: engine.clip_grad_norm_(1.0), engine.gradients):
                try:
                    use()
                except RuntimeError as error:
                    said.append(str(error))
            engine.scaler.unscale_(engine.optimizer)
            engine.clip_grad_norm_(1.0)
            engine.scaler.step(engine.optimizer)
            engine.scaler.update()
        return said

    for stages in clusters(2).run(on_every_stage, clipping, precision="fp16"):
        for said in stages.values():
            assert len(said) == 4
            assert "the gradients to clip are still multiplied by the loss scale, " in said[0]
            assert "call engine.scaler.unscale_(engine.optimizer) first" in said[1]


@pytest.mark.parametrize("stage", STAGES)
def test_a_recording_has_the_exchange_by_which_ranks_agree_on_an_overflow(clusters, stage):
    def step():
        engine = ENGINES[stage](make("plain"), torch.optim.AdamW, precision="fp16", **ADAMW)
        for _ in range(2):
            engine.training_step(my_rows(0), None, lambda outputs, _: loss_of(outputs))

    for rank in clusters(2).record(step).ranks:
        agreed = [each for each in rank.events if each.kind == "collective" and each.numel == 1]
        assert [each.op for each in agreed] == ["all_reduce"] * (0 if stage == "ddp" else 2)
        assert {each.step for each in agreed} <= {0}, "ranks that compare what they have found are part of no step"
