# The public names, each with its home: for type checkers, and for what `zerolab` imports when it is asked for one.

from zerolab import catalog as catalog
from zerolab import engines as engines
from zerolab import facts as facts
from zerolab import figures as figures
from zerolab import models as models
from zerolab import recording as recording
from zerolab import tables as tables
from zerolab import theory as theory
from zerolab.comparison import Comparison as Comparison
from zerolab.comparison import compare as compare
from zerolab.comparison import record as record
from zerolab.engines import DDP as DDP
from zerolab.engines import Zero1 as Zero1
from zerolab.engines import Zero2 as Zero2
from zerolab.engines import Zero3 as Zero3
from zerolab.engines.deepspeed import DeepSpeed0 as DeepSpeed0
from zerolab.engines.deepspeed import DeepSpeed1 as DeepSpeed1
from zerolab.engines.deepspeed import DeepSpeed2 as DeepSpeed2
from zerolab.engines.deepspeed import DeepSpeed3 as DeepSpeed3
from zerolab.engines.fsdp1 import FSDP1 as FSDP1
from zerolab.engines.fsdp2 import FSDP2 as FSDP2
from zerolab.engines.fsdp2 import HSDP as HSDP
from zerolab.engines.torch_ddp import TorchDDP as TorchDDP
from zerolab.engines.torch_ddp import TorchZero1 as TorchZero1
from zerolab.exercises import check as check
from zerolab.exercises import diagnose as diagnose
from zerolab.exercises import examine as examine
from zerolab.exercises import hint as hint
from zerolab.exercises import hole as hole
from zerolab.exercises import solution as solution
from zerolab.figures.explore import explore as explore
from zerolab.figures.what_fits import what_fits as what_fits
from zerolab.lessons.deepspeed_runs import deepspeed_runs as deepspeed_runs
from zerolab.lessons.errors import expect_error as expect_error
from zerolab.lessons.predictions import reveal as reveal
from zerolab.recording.recorder import evaluation as evaluation
from zerolab.recording.recording import Recording as Recording
from zerolab.recording.wire import bytes_sent as bytes_sent
from zerolab.runtime.cluster import Cluster as Cluster
from zerolab.runtime.faults import CollectiveHang as CollectiveHang
from zerolab.runtime.faults import RankError as RankError
from zerolab.simulation.run import simulate as simulate
from zerolab.tables import Table as Table
from zerolab.theory.systems import deepspeed_estimate as deepspeed_estimate

__version__: str
