"""Which stages fit a model onto GPUs, what they cost, and the settings that do it: arithmetic only, no torch.

Bytes are the closed forms of `zerolab.theory`, one unit's buffers, and activations by Korthikanti et al. 2022,
arXiv 2205.05198, equation 1 without the attention matrix, which fused attention never stores: 34 s b h bytes a block
in 16 bit. Seconds are 6 operations a parameter and token at a stated utilisation, and ring passes that do not overlap.
GB is 1e9 bytes.
"""

from __future__ import annotations

from typing import Any

from zerolab import catalog
from zerolab.tables import Table

UTILISATION = 0.4
DEEPSPEED = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}


def plan(
    model: str,
    gpus: int,
    memory: float | None = None,
    bandwidth: float | None = None,
    precision: str = "bf16",
    *,
    batch: int = 1,
    gpu: str = "h100",
) -> Table:
    """One row a stage: bytes a GPU by part, whether they fit, seconds a step, and what is missing where they do not.

    Args:
        model: a name of the catalog.
        gpus: how many, one rank each.
        memory: bytes of one GPU (80 GB is 80e9, 80 GiB is 80 * 2**30); None takes the catalog's.
        bandwidth: bytes a second that a rank sends; None takes the GPU's link.
        precision: "fp32" or "bf16".
        batch: rows a GPU, each as long as the model's context.
        gpu: a name of the catalog, for its rate and what is not given.

    Raises ValueError for an unknown name, a count below 1, or a memory or bandwidth that is not positive.
    """
    from zerolab import theory

    shape, device = catalog.architecture(model), catalog.gpu(gpu)
    memory = device.memory_bytes if memory is None else memory
    bandwidth = catalog.link(device.link).bytes_per_second if bandwidth is None else bandwidth
    for name, value in (("memory", memory), ("bandwidth", bandwidth), ("batch", batch)):
        if not value > 0:
            raise ValueError(f"the {name} is {value!r}: it must be above 0 (bytes, bytes a second, rows)")
    word = theory.BYTES_PER_PARAMETER.get(precision, {}).get("parameters", 0)
    rows: list[dict[str, Any]] = []
    for stage in theory.STAGES:
        state = sum(theory.state_bytes(stage, shape.num_params, gpus, precision).values())
        unit = word * max(shape.block_params, shape.root_params)
        buffers = unit * {"ddp": 1, "zero1": 1, "zero2": 3, "zero3": 5}[stage]
        activations = 17 * word * shape.context * batch * shape.width * shape.depth
        need = state + buffers + activations
        compute = 6 * shape.num_params * batch * shape.context / (device.flops[precision] * UTILISATION)
        sending = theory.traffic_bytes(stage, shape.num_params, gpus, precision) / bandwidth
        fits = need <= memory
        rows.append(
            {
                "stage": stage,
                "fits": fits,
                "state GB": state / 1e9,
                "unit buffers GB": buffers / 1e9,
                "activations GB": activations / 1e9,
                "needs GB": need / 1e9,
                "missing GB": None if fits else (need - memory) / 1e9,
                "compute_seconds": compute,
                "communication_seconds": sending,
            }
        )
    return Table(rows, f"{model} on {gpus} {gpu}, {precision}, {memory / 1e9:g} GB each", times=True)


def settings(stage: str, precision: str = "bf16") -> dict[str, Any]:
    """The same stage in other systems: keywords of FSDP2's `fully_shard`, and DeepSpeed's configuration.

    FSDP2 has no ZeRO-1, and replicates only through DDP; there its entry is None. Raises ValueError for a stage that
    is none.
    """
    if stage not in DEEPSPEED:
        raise ValueError(f"unknown stage {stage!r}: choose one of {', '.join(DEEPSPEED)}")
    choices: dict[str, dict[str, Any]] = {
        "zero2": {"reshard_after_forward": False},
        "zero3": {"reshard_after_forward": True},
    }
    fsdp2 = choices.get(stage)
    deepspeed: dict[str, Any] = {"zero_optimization": {"stage": DEEPSPEED[stage]}}
    if precision == "bf16":
        deepspeed["bf16"] = {"enabled": True}
        if fsdp2 is not None:
            fsdp2 = fsdp2 | {"mp_policy": "MixedPrecisionPolicy(param_dtype=torch.bfloat16)"}
    return {"fsdp2": fsdp2, "deepspeed": deepspeed}
