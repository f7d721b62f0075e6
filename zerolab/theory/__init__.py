"""Closed forms: what a rank holds and sends, what fits on which GPUs, and how long a step takes. No torch.

forms        bytes of model state and bytes sent, stage by stage (ZeRO); the terms beyond them
planner      which stages fit a model onto GPUs, what a step costs, and the settings for it; job is its question
moments activations schemes    the planner's memory
remedies     what to try where nothing fits
seconds nccl                   the planner's time: a step, and the collectives in it
configs      a plan's settings in FSDP2, DeepSpeed and Megatron
systems      which closed form another system follows, and what it holds beyond it
parallel     what HSDP, hpZ, tensor, pipeline, context and expert parallelism add
muon         Muon's memory and traffic under three placements
"""

from zerolab.theory.configs import settings
from zerolab.theory.forms import (
    BYTES_PER_PARAMETER,
    MOMENTS,
    PASSES,
    SHARDED,
    STAGES,
    STATE_CATEGORIES,
    STEP_COUNTER_BYTES,
    state_bytes,
    terms,
    traffic_bytes,
    traffic_elements,
)
from zerolab.theory.planner import plan

__all__ = [
    "BYTES_PER_PARAMETER",
    "MOMENTS",
    "PASSES",
    "SHARDED",
    "STAGES",
    "STATE_CATEGORIES",
    "STEP_COUNTER_BYTES",
    "plan",
    "settings",
    "state_bytes",
    "terms",
    "traffic_bytes",
    "traffic_elements",
]
