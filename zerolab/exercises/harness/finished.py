"""What an answer on ranks may not reach for: the finished stages, here and in other systems."""

from zerolab.engines import ENGINES
from zerolab.theory import STAGES

MODULES = (
    *ENGINES.modules(),
    "zerolab.engines.native",
    "torch.nn.parallel.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.optim.zero_redundancy_optimizer",
    "deepspeed",
)
FINISHED = [ENGINES[stage] for stage in STAGES]
NAMES = (
    *(engine.__name__ for engine in FINISHED),
    "ENGINES",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "fully_shard",
    "ZeroRedundancyOptimizer",
)
QUESTIONS = ("own", "reduce", "keep", "publish", "gather", "release")  # what a stage decides
CALLS = (
    *(
        f"{engine.__module__}:{engine.__name__}.{question}"
        for engine in FINISHED
        for question in QUESTIONS
        if question in vars(engine)
    ),
    "zerolab.engines.native:Native.__init__",
    "torch.nn.parallel.distributed:DistributedDataParallel.__init__",
    "torch.distributed.fsdp:FullyShardedDataParallel.__init__",
    "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState.__init__",
    "torch.distributed.optim.zero_redundancy_optimizer:ZeroRedundancyOptimizer.__init__",
    "deepspeed:initialize",
)
