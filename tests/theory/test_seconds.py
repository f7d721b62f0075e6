"""Seconds of a step in closed form: each part by hand, and what a quoted utilisation means."""

from dataclasses import replace

import pytest

from zerolab import catalog
from zerolab.theory import parallel, seconds
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.job import Job
from zerolab.theory.parallel import Run
from zerolab.theory.seconds import FITTED, Constants, matrix_params, quoted_flops, step

NDR = catalog.link("infiniband-ndr")
LLAMA3 = catalog.architecture("llama3-8b")


def job(shape=LLAMA3, gpus=8, gpu="h100", precision="bf16", rows=1, **more):
    return Job(shape, gpus, precision, rows, shape.context, gpu=catalog.gpu(gpu), **more)


def test_attention_counts_as_quoted_utilisations_count_it():
    """torchtitan: Llama 3.1 8B, 16,384 tokens a GPU of H100 in 2.84 s, "33 %": 6 operations a parameter say 2.42 s."""
    quoted = step(job(rows=2, utilisation=0.33), "zero3").total
    assert quoted == pytest.approx(16384 / 5762, rel=0.03)
    assert quoted_flops(LLAMA3, 8192) / (6 * matrix_params(LLAMA3)) == pytest.approx(1.29, abs=0.01)
    gpt2 = catalog.architecture("gpt2")
    assert quoted_flops(gpt2, 1024) / (6 * matrix_params(gpt2)) == pytest.approx(1.15, abs=0.01)


def test_what_is_looked_up_is_not_multiplied_and_a_tied_output_is():
    gpt2 = catalog.architecture("gpt2")
    blocks = 12 * (12 * 768**2 + 13 * 768)
    assert matrix_params(gpt2) == blocks + 50257 * 768
    assert matrix_params(LLAMA3) == LLAMA3.num_params - 128256 * 4096 - 4096


def test_a_step_is_its_matrices_its_attention_what_is_moved_and_the_update(monkeypatch):
    """One GPU, no network: every second by hand."""
    shape, box = catalog.architecture("gpt2"), catalog.gpu("a100")
    ideal = Constants(a100=1.0, eager=0.0, fused=0.0, contention=0.0, straggling=0.0)
    monkeypatch.setattr(seconds, "FITTED", ideal)
    found = step(job(shape, 1, "a100"), "ddp")
    attention = 12 * 12 * 768 * 1024 / 2 * 7 / 6 / seconds.ATTENTION_PART["a100"]
    assert found.computing == pytest.approx(1024 * (6 * matrix_params(shape) + attention) / 312e12)
    assert found.updating == pytest.approx(40 * shape.num_params / box.memory_bytes_per_second)
    assert (found.sending, found.waiting, found.straggling) == (0, 0, 0)
    monkeypatch.setattr(seconds, "FITTED", replace(ideal, eager=3.0))
    moved = step(job(shape, 1, "a100"), "ddp").computing - found.computing
    kept = 12 * 17 * 768 + 2 * 50257
    assert moved == pytest.approx(3 * 2 * kept * 1024 / box.memory_bytes_per_second)


def test_what_is_recomputed_is_forward_once_more():
    none, half, full = (step(job(checkpointing=how), "zero3").computing for how in ("none", "selective", "block"))
    assert full - half == pytest.approx(half - none)
    assert 1.25 < full / none < 1.34


def test_sending_that_fits_beside_computing_costs_its_contention_and_the_ends():
    large, small = (step(job(gpus=64, rows=rows), "zero3") for rows in (4, 1))
    assert large.sending == small.sending
    assert large.waiting == pytest.approx(small.waiting)  # all of the blocks' is hidden in both
    assert FITTED.contention * large.sending < large.waiting < 0.5 * large.sending


def test_what_does_not_fit_beside_computing_is_waited_for():
    slow = replace(NDR, bytes_per_second=1e8)
    found = step(job(catalog.architecture("gpt2"), 16, network=slow), "zero3")
    assert found.waiting > found.sending - found.computing


def test_a_step_grows_with_the_nodes_as_mosaicml_published_it():
    """MPT 7B on H100: + 10 % from 8 to 512 GPUs, where the model once said - 1 %."""
    from published_runs import runs

    few, many = (
        next(
            run for run in runs() if (run.job.shape.name, run.job.gpu.name, run.job.world_size) == ("mpt-7b", "h100", n)
        )
        for n in (8, 512)
    )
    few = next(run for run in runs() if run.job == replace(many.job, world_size=8))
    published = many.seconds / few.seconds - 1
    assert published == pytest.approx(0.10, abs=0.01)
    assert many.predicted_seconds / few.predicted_seconds - 1 == pytest.approx(published, abs=0.05)


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_what_ranks_exchange_takes_as_long_as_what_the_form_says_that_they_send(checkpointing):
    rate = 1e9
    plain = job(checkpointing=checkpointing, bandwidth=rate)
    run = Run(LLAMA3, 8, length=LLAMA3.context, checkpointing=checkpointing)
    exchanged = sum(seconds.exchange_seconds(replace(plain, tensor=8)))
    assert LLAMA3.depth * exchanged * rate == pytest.approx(parallel.tensor(run, 8).sent["node"])
    ring, without = (step(replace(plain, context=ranks), "zero3").sending for ranks in (8, 1))
    assert (ring - without) * rate == pytest.approx(parallel.context(run, 8).sent["context"])


def test_with_the_optimizer_in_main_memory_fsdp2_copies_its_fp32_shards_for_each_gather():
    shape = catalog.architecture("llama3-70b")
    there = job(shape, 16, offload=True, checkpointing="block")

    def copied(stage, **more):
        """Bytes for each parameter that a rank owns."""
        updating = step(replace(there, **more), stage).updating
        return updating * seconds.HOST_BYTES_PER_SECOND * 16 / shape.num_params

    assert copied("zero3") == copied("zero2") == pytest.approx(4)
    assert copied("zero3", scheme="fsdp2") == pytest.approx(12)
    assert step(replace(there, scheme="fsdp2"), "zero3").updating == pytest.approx(1.654, abs=0.001)
    assert copied("zero2", scheme="fsdp2") == pytest.approx(8)
    assert copied("zero3", scheme="fsdp2", sharding="hpz") == pytest.approx(8)  # backward gathers from the GPU
    assert copied("zero3", scheme="fsdp2", micro_batches=3) == pytest.approx(36)


def test_shorter_rows_than_the_model_takes_leave_its_positions_to_be_updated():
    """It updated a table of positions that was as short as the rows."""
    gpt2 = catalog.architecture("gpt2")
    whole, shorter = (step(replace(job(gpt2), length=length), "ddp") for length in (1024, 512))
    assert shorter.updating == whole.updating


def test_in_a_hybrid_the_nodes_exchange_gradients_alone():
    shape = catalog.architecture("llama2-7b")
    slow = replace(NDR, bytes_per_second=6.25e9)
    full, hybrid = (step(job(shape, 128, sharding=how, network=slow), "zero3") for how in ("full", "hybrid"))
    assert hybrid.sending < full.sending


def test_a_node_that_is_not_full_bounds_what_all_of_them_send():
    """Of 9 GPUs the second node has one, with one card of 50 GB/s; with 16 GPUs each has eight."""
    sending = {gpus: step(job(gpus=gpus), "ddp").sending for gpus in (9, 16)}
    assert sending[9] > 3 * sending[16]


def test_ddp_divides_nothing_so_that_hybrid_changes_no_seconds_of_it():
    """It had its gradients sent twice: within the nodes, and whole between them."""
    assert step(job(gpus=16, sharding="hybrid"), "ddp") == step(job(gpus=16), "ddp")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kernels": "fast"}, "unknown kernels 'fast': choose one of eager"),
        ({"checkpointing": "full"}, "unknown checkpointing 'full': choose one of none"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"gpu": "v100"}, "v100 has no bf16: take fp16 or fp32"),
        ({"scheme": "fsdp"}, "unknown scheme 'fsdp'"),
        ({"gpus": 0}, "the world size is 0: it must be a whole number"),
        ({"utilisation": 1.5}, r"the utilisation is 1\.5"),
    ],
)
def test_a_job_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        job(**wrong)
