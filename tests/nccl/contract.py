"""A process group on the CPU that behaves towards Python as NCCL does; gloo moves the bytes below it.

What torch promises of NCCL, and what code that was only run on gloo gets wrong:

* A collective is handed to a stream, and the call returns. A synchronous one returns no Work at all.
* `wait()` has the compute stream wait, and never the host. A Work's future is done from the beginning.
* Nothing but an event says that a collective has ended.
* The collectives of a group are executed one after the other, in the order in which they were asked for.
* A barrier does block the host, which then spins in native code.
* So does the first message between two ranks, in the receive and in an asynchronous send, too: it makes a communicator
  for the two, for which both have to come. Messages in one `batch_isend_irecv` go over the group's own.

There is no second stream for the computing: an operation runs at once, unless it touches a tensor for which the compute
stream waits. Then it blocks, as a host does that asks a GPU for a number. Everything else runs ahead.
"""

import contextlib
import hashlib
import inspect
import os
import random
import sys
import threading
import time
from queue import SimpleQueue
from types import SimpleNamespace
from unittest import mock
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from zerolab import Cluster
from zerolab.engines import offload
from zerolab.engines.taken import Taken
from zerolab.engines.views import Arriving
from zerolab.recording import sources, streams
from zerolab.recording.patches import replace
from zerolab.runtime import counter, requests, stack
from zerolab.runtime.observers import holders

BACKEND = "contract"
MESSAGES = ("send", "recv")
OFFLOADING = "offloading"
COMPUTING = "computing"  # in the place of a group: what is no collective
SLOWEST = 0.002  # seconds that a collective waits at most before it begins, so that it is under way for a while
DRIFT = 1e-2  # how much faster the device's clock runs than the host's
PATIENCE = 0.05  # seconds that a blocked host sleeps before it spins
TIMEOUT = 1.5  # seconds after which three ranks that wait for each other hang


class Fault(AssertionError):
    """What would be a race on a GPU."""


class Span:
    """The bytes in which a tensor lies, and whether a collective writes there."""

    def __init__(self, tensor, written):
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start, size = tensor.storage_offset() * tensor.element_size(), tensor.element_size() * (tensor.numel() > 0)
        self.lie_in(tensor.untyped_storage(), start, start + (reach + 1) * size, written)

    def lie_in(self, storage, start, stop, written):
        # By address: two storages may lie over the same memory. One that is released has none.
        address = storage.data_ptr()
        self.released, self.written = None if address else storage._cdata, written
        self.start, self.stop = address + start, address + stop

    def collides(self, other):
        apart = self.released != other.released or self.stop <= other.start or other.stop <= self.start
        return not apart and (self.written or other.written)


class Kernel:
    """One collective on its stream: `is_done` is its event."""

    def __init__(self, name, run, reads, writes, group):
        self.name, self.group, self._run, self._tensors = name, group, run, (reads, writes)
        self.what = name, sum(tensor.numel() for tensor in reads or writes), str({t.dtype for t in reads or writes})
        self.spans = [Span(tensor, False) for tensor in reads] + [Span(tensor, True) for tensor in writes]
        self.after = []  # what the compute stream waited for when this was asked for
        self.is_awaited = False  # by the compute stream
        self.asked_by_python = True  # native code waits where nobody sees it
        self.work = None  # as Python has it, until it has waited for it
        self.for_host = None  # what it brings into main memory, until the host has waited for it
        self.ended_at = 0  # nanoseconds
        self._ended = threading.Event()
        self._error = None

    def execute(self):
        for kernel in self.after:
            kernel._ended.wait()
        time.sleep(random.uniform(0, SLOWEST))
        try:
            self._run()
        except RuntimeError as error:
            self._error = error
        self._run = self._tensors = None
        self.after.clear()
        self.ended_at = time.monotonic_ns()
        self._ended.set()
        if not self.asked_by_python:
            self.work = None

    @property
    def is_done(self):
        return self._ended.is_set()

    def wait(self):
        """Blocks whoever executes something that comes after it."""
        self._ended.wait()

    def block(self):
        """Has the host wait as it waits for a GPU: after a moment in a loop of native code, without Python's lock."""
        if not self._ended.wait(PATIENCE):
            while not self.is_done:
                hashlib.pbkdf2_hmac("sha256", b"", b"", 30_000)
        if self._error is not None:
            raise self._error


class Stream(threading.Thread):
    """Where the collectives of one group are executed."""

    def __init__(self):
        super().__init__(daemon=True)
        self.kernels = SimpleQueue()
        self.start()

    def run(self):
        while True:
            self.kernels.get().execute()


class Device:
    """What the rank has handed over: everything under way, by whether the compute stream waits for it."""

    kind = "cpu"

    def __init__(self):
        self.streams = {}
        self.under_way = []  # in the order in which they were asked for
        self.works = WeakKeyDictionary()  # the kernel of each Work that Python has
        self.filled = WeakKeyDictionary()  # and what it fills, which NCCL's Work keeps for as long as it lives
        self.order = []  # (group, operation, elements, type) of everything that was asked for
        self.met = set()  # the pairs of ranks that have a communicator of their own
        self.alone = None  # a group of this rank only: its works are done as soon as they exist

    def reset(self):
        self.under_way, self.order = [], []

    def hand_over(self, kernel, is_synchronous):
        self.touch(kernel.spans, f"{kernel.name} takes", kernel.group)
        if kernel.group not in (COMPUTING, OFFLOADING) and kernel.name not in MESSAGES:
            self.order.append((kernel.group, *kernel.what))
        self.tidy()
        kernel.after = [other for other in self.under_way if other.is_awaited]
        kernel.is_awaited = is_synchronous  # its kernel runs on the compute stream itself
        self.under_way.append(kernel)
        if kernel.group not in self.streams:
            self.streams[kernel.group] = Stream()
        self.streams[kernel.group].kernels.put(kernel)

    def touch(self, spans, what, group=None):
        """Before something is used: waits where the compute stream waits, and refuses where it does not."""
        for kernel in self.under_way.copy():
            if (group is not None and kernel.group == group) or not any(
                mine.collides(theirs) for mine in kernel.spans for theirs in spans
            ):
                continue  # what one group sends is ordered by its stream
            if kernel.asked_by_python and not kernel.is_awaited:
                raise Fault(f"{what} what {kernel.name} is still sending or receiving: nobody has waited for it")
            if kernel.for_host is not None and any(kernel.for_host[1].collides(theirs) for theirs in spans):
                raise Fault(f"{what} what {kernel.name} is still bringing: the host has not waited for it")
            if group is None:
                kernel.block()

    def tidy(self):
        """Forgets what has ended, but for what nobody has waited for: a race that was won by chance is one, too."""
        self.under_way = [
            kernel
            for kernel in self.under_way
            if not kernel.is_done or kernel.for_host is not None or (kernel.asked_by_python and not kernel.is_awaited)
        ]

    def wait(self, original, work, *args, **keywords):
        """`dist.Work.wait`: the compute stream waits from here on, and the host goes on."""
        kernel = self.works.get(work)
        if kernel is None:
            return original(work, *args, **keywords)
        kernel.is_awaited, kernel.work = True, None
        return True

    def is_completed(self, original, work):
        kernel = self.works.get(work)
        return original(work) if kernel is None else kernel.is_done

    def mark(self):
        """An event on the compute stream: it has come when all is done that the stream waits for by now."""
        return Mark([kernel for kernel in self.under_way if kernel.is_awaited and not kernel.is_done])

    def mark_end(self, work, communicator, tensors):
        """An event on a side stream that waits for a Work; native code's may have ended, and so be unknown."""
        kernel = self.works.get(work)
        return Mark([kernel] if kernel is not None else [])

    def waited(self, work):
        """Nothing is kept for it."""

    def is_capturing(self):
        """It has no graphs."""
        return False

    def stream(self):
        """There is one on which anything computes."""
        return COMPUTING

    def carries(self, group, tensors):
        """Whether a collective of this group is executed here."""
        return dist.get_backend(group) == BACKEND

    def nanoseconds(self, earlier, later):
        """By a clock of its own, in the precision of torch's `elapsed_time`."""
        milliseconds = (later.reached_at() - earlier.reached_at()) * (1 + DRIFT) / 1e6
        return torch.tensor(milliseconds, dtype=torch.float32).item() * 1e6

    def synchronize(self):
        """Blocks until everything that was handed over has ended."""
        for kernel in self.under_way.copy():
            kernel.block()

    def is_busy(self):
        return any(kernel.is_awaited and not kernel.is_done for kernel in self.under_way.copy())

    def meet(self, group, peer):
        """Makes the communicator of two ranks, once: blocks the host until the other one wants it, too."""
        mine, theirs = (
            f"{group.group_name}: {one} meets {other}" for one, other in ((group.rank(), peer), (peer, group.rank()))
        )
        if mine not in self.met:
            self.met.add(mine)
            store = dist.distributed_c10d._get_default_store()
            store.set(mine, "")
            inspect.unwrap(dist.Store.wait)(store, [theirs])

    def send_away(self, tensor, copy):
        """`offload.start`: a copy into main memory, on a stream of its own."""
        kernel = Kernel("offload", lambda: copy.copy_(tensor), [tensor], [copy], OFFLOADING)
        kernel.for_host = copy, Span(copy, True)
        self.hand_over(kernel, False)
        return End(kernel)

    def finish(self, _):
        """`offload.finish`: the host waits for the compute stream."""
        for kernel in self.under_way.copy():
            if kernel.group == COMPUTING:
                End(kernel).synchronize()

    def compute(self, work):
        """Hands over a computation: what it calls, or how many seconds it takes."""
        run = work if callable(work) else lambda: time.sleep(work)
        self.hand_over(Kernel("a computation", run, [], [], COMPUTING), True)

    def check_all_was_waited_for(self):
        for kernel in self.under_way:
            if kernel.asked_by_python and not kernel.is_awaited:
                raise Fault(f"nobody has waited for {kernel.name}")


class End:
    """An event behind a copy."""

    def __init__(self, kernel):
        self._kernel = kernel

    def wait(self):
        """The compute stream waits, and not the host."""
        self._kernel.is_awaited = True

    def synchronize(self):
        """The host waits."""
        self.wait()
        self._kernel.block()
        self._kernel.for_host = None


class Mark:
    """An event on the compute stream."""

    def __init__(self, kernels):
        self._kernels, self._made_at = kernels, time.monotonic_ns()

    def reached_at(self):
        """When it came, in nanoseconds."""
        return max([self._made_at] + [kernel.ended_at for kernel in self._kernels])

    def query(self):
        return all(kernel.is_done for kernel in self._kernels)


device = Device()


class InFlight(TorchDispatchMode):
    """Looks at each operation before it runs; may pause before one, to have the ranks run apart."""

    def __init__(self, jitter):
        super().__init__()
        self._jitter = jitter

    @classmethod
    def _should_skip_dynamo(cls):
        """False: else torch asks its compiler before each operation."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(is_traceable_wrapper_subclass_type(kind) or issubclass(kind, Taken) for kind in types):
            return NotImplemented
        if self._jitter and random.random() < 0.02:
            time.sleep(random.uniform(0, self._jitter))
        if device.under_way and _computes(func):
            written = {id(value) for value in _written(func, args, kwargs)}
            tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
            for tensor in tensors:
                verb = "writes" if id(tensor) in written else "reads"
                device.touch([_span(tensor, verb == "writes")], f"{func} {verb}")
        return func(*args, **kwargs)


def _computes(func):
    """Whether an operation reads or writes a tensor's numbers: a view does not, nor does what only takes a shape."""
    schema = getattr(func, "_schema", None)
    if schema is None or func.namespace == "c10d" or func.namespace.startswith("_c10d"):
        return False
    name = schema.name.split("::")[1]
    views = any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)
    return not views and not name.startswith(("empty", "new_", "zeros", "ones", "full", "rand", "detach", "is_same"))


def _written(func, args, kwargs):
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _span(tensor, written):
    return Span(tensor, written) if tensor.layout is torch.strided else Span(tensor._values(), written)


# --- what c10d's operations do from here on -----------------------------------------------------------------------

TAKES = {
    "allreduce_": ("all_reduce", [0], [0]),
    "allreduce_coalesced_": ("all_reduce", [0], [0]),
    "broadcast_": ("broadcast", [0], [0]),
    "reduce_": ("reduce", [0], [0]),
    "allgather_": ("all_gather", [1], [0]),
    "_allgather_base_": ("all_gather", [1], [0]),
    "allgather_into_tensor_coalesced_": ("all_gather", [1], [0]),
    "reduce_scatter_": ("reduce_scatter", [1], [0]),
    "_reduce_scatter_base_": ("reduce_scatter", [1], [0]),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", [1], [0]),
    "gather_": ("gather", [1], [0]),
    "scatter_": ("scatter", [1], [0]),
    "alltoall_": ("all_to_all", [1], [0]),
    "alltoall_base_": ("all_to_all", [1], [0]),
    "barrier": ("barrier", [], []),
    "send": ("send", [0], []),
    "recv_": ("recv", [], [0]),
}
"""The operations of c10d: the word for each, and which of its arguments it reads and writes."""
_ON_THE_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def _handed_over(operation):
    """What an operation of c10d does instead of running: it goes to the stream of its group."""
    overload = getattr(torch.ops.c10d, operation).default
    word, reads, writes = TAKES[operation]
    names = [argument.name for argument in overload._schema.arguments]

    def kernel(_, *args, **keywords):
        given = dict(zip(names, args, strict=False)) | keywords
        group = dist.ProcessGroup.unbox(given["process_group"])
        if dist.get_backend(group) != BACKEND:
            return overload.redispatch(_ON_THE_CPU, *args, **keywords)
        stream = group.group_name
        if word in MESSAGES:
            peer = given["dst" if word == "send" else "src"]
            stream += f", {word} {peer}"  # small ones have room in NCCL's buffers: none waits for one the other way
            if not _is_called_by("batch_isend_irecv"):
                device.meet(group, peer)

        def run():
            result = overload.redispatch(_ON_THE_CPU, *args, **keywords)
            work = dist.Work.unbox(result[-1] if isinstance(result, tuple) else result)
            inspect.unwrap(dist.Work.wait)(work)

        read, written = (tensors_in([args[place] for place in places]) for places in (reads, writes))
        asked = Kernel(word, run, read, written, stream)
        work = _launch(asked, given.get("async_op", True), (read or written)[:1], written)
        return (args[0], work) if len(overload._schema.returns) == 2 else work

    return kernel


def _launch(kernel, is_async, tensors, filled):
    """Hands a collective to its stream; the boxed Work that torch is to have of it, which may be none."""
    kernel.asked_by_python = _asked_by_python()
    device.hand_over(kernel, not is_async)
    if not is_async:
        if kernel.name == "barrier":
            kernel.block()
        return dist.Work.boxed(None)
    # Native code takes the result from the Work's future, so it has to be of the same kind as gloo's own.
    work = device.alone.allreduce(tensors if kernel.name == "all_reduce" else [torch.zeros(1)])
    inspect.unwrap(dist.Work.wait)(work)
    # Kept until it is waited for: torch would hand Python another object for a Work that Python has dropped.
    device.works[work], kernel.work = kernel, work
    device.filled[work] = [tensor.detach() for tensor in filled]
    return work.boxed()


def tensors_in(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _is_called_by(function):
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def _asked_by_python():
    """Whether Python asked for the collective that is being handed over, and so has to wait for it in Python."""
    frame = sys._getframe(2)
    # The kernel that notes what native code starts lies between, a recorder's mode, and what calls torch's dispatcher.
    ours = ("runtime/requests.py", "recording/exchanges.py", "recording/dispatch.py")
    between = (__file__, "torch/_ops.py", *ours)
    while frame is not None and frame.f_code.co_filename.endswith(between):
        frame = frame.f_back
    name = frame.f_code.co_filename if frame is not None else ""
    return name.endswith(("distributed/distributed_c10d.py", "engines/collectives.py"))


# --- a rank of it --------------------------------------------------------------------------------------------------


def install():
    """Once in a process: c10d's operations are ours from here on, for groups of the contract."""
    sources._MACHINERY += (os.path.realpath(__file__),)  # as NCCL's own code would be: no line of it is the learner's
    sources._label_of_file.cache_clear()
    stack.is_a_lesson.cache_clear()
    streams.find_timer = lambda: device
    device.alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    dist.Backend.register_backend(BACKEND, dist.ProcessGroupGloo, devices=["cpu"])
    # Below a recorder's dispatch mode, and above the kernel that calls gloo. The counter's kernel is at this level too:
    # there is one for each operation, so it comes first, and hands on.
    device.library = torch.library.Library("c10d", "IMPL")
    for operation in TAKES:
        kernel = _handed_over(operation)
        name = requests.NATIVE_OPERATIONS.get(operation)
        if name is not None and requests._libraries:
            kernel = requests._told(SimpleNamespace(redispatch=kernel), name, counter._counter.start_native)
        device.library.impl(operation, kernel, "BackendSelect", with_keyset=True, allow_override=True)
    dist.Work.is_completed = _patched(dist.Work.is_completed, device.is_completed)
    # The counter hears of each wait, as it does on a GPU.
    dist.Work.wait = _patched(inspect.unwrap(dist.Work.wait), device.wait)
    device.counted = replace(dist.Work, "wait", counter._counter.wait)
    device.counted.__enter__()
    torch.UntypedStorage.resize_ = _patched(torch.UntypedStorage.resize_, _resize)
    for name in ("tolist", "numpy"):  # no operations: the dispatcher never hears of them
        setattr(torch.Tensor, name, _patched(getattr(torch.Tensor, name), _fetch))


def _patched(original, ours):
    def instead(*args, **keywords):
        return ours(original, *args, **keywords)

    instead.__wrapped__ = original
    return instead


def _resize(original, storage, size):
    if device.under_way and storage.size():
        span = Span(torch.empty(0), True)
        span.lie_in(storage, 0, storage.size(), True)
        device.touch([span], "resize_ frees")
    return original(storage, size)


def _fetch(original, tensor, *args, **keywords):
    if torch.overrides.has_torch_function_unary(tensor):  # its class is asked first, and then we are once more
        return original(tensor, *args, **keywords)
    device.touch([_span(tensor, False)], f"{original.__name__} reads")
    return original(tensor, *args, **keywords)


def join(path):
    """Has this rank of a Cluster leave gloo's group, and join one of the contract instead."""
    if device.alone is not None:
        return
    install()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inspect.unwrap(dist.destroy_process_group)()
    start = inspect.unwrap(dist.init_process_group)
    start(BACKEND, store=dist.FileStore(path, world_size), rank=rank, world_size=world_size)
    counter.follow(device, in_order=True)


def contracted(jitter, function, args, keywords):
    """Calls a function on a rank of the contract, and looks at what it leaves; its result, and what it asked for."""
    device.reset()
    random.seed(dist.get_rank())
    with InFlight(jitter):
        result = function(*args, **keywords)
    use_what_arrives()
    device.check_all_was_waited_for()
    return result, device.order


def use_what_arrives():
    """Waits as the next step would: after its last one an engine leaves updated parameters on their way."""
    for engine in list(holders):
        for parameter in engine.model.parameters():
            if isinstance(parameter, Arriving):
                parameter.settle()


class Ranks:
    """A cluster whose ranks are of the contract; `run` and `record` also compare what the ranks asked for."""

    def __init__(self, cluster, folder, jitter=0.0):
        self._cluster, self._folder, self._jitter = cluster, folder, jitter

    def run(self, function, *args, **keywords):
        self._join()
        answers = self._cluster.run(contracted, self._jitter, function, args, keywords)
        check_order([order for _, order in answers])
        return [result for result, _ in answers]

    def record(self, function, *args, **keywords):
        return self._record(self._cluster.record, function, args, keywords)

    def record_times(self, function, *args, **keywords):
        return self._record(self._cluster.record_times, function, args, keywords)

    def unchecked(self):
        """The cluster itself: its ranks are of the contract, and nobody looks at what they do."""
        self._join()
        return self._cluster

    def _record(self, record, function, args, keywords):
        self._join()
        recording = record(contracted, self._jitter, function, args, keywords)
        check_order([order for _, order in recording.results])
        recording.results = [result for result, _ in recording.results]
        return recording

    def _join(self):
        """Has fresh ranks join before they are watched: a recorder puts back what it finds."""
        pids = self._cluster.run(_pid)
        self._cluster.run(join, str(self._folder / f"store-{pids[0]}"))


class OnContract(Cluster):
    """A cluster whose ranks are of the contract, in place of one that a piece of code makes itself."""

    folder = None  # to be set: where the ranks meet

    def __enter__(self):
        self._contract = Ranks(super(), self.folder)
        return self

    def run(self, function, *args, **keywords):
        return self._contract.run(function, *args, **keywords)

    def record(self, function, *args, **keywords):
        return self._contract.record(function, *args, **keywords)


def _pid():
    import os

    return os.getpid()


def check_order(orders):
    """Fault if the ranks asked for different collectives, or in different orders, group by group."""
    for name in sorted({group for order in orders for group, *_ in order}):
        columns = [[what for group, *what in order if group == name] for order in orders]
        columns = [column for column in columns if column]
        for number, row in enumerate(zip(*columns, strict=False)):
            # Of an all-to-all each rank may send and receive another number of elements.
            alike = [[*what[:1], *what[2:]] if what[0] == "all_to_all" else what for what in row]
            if any(what != alike[0] for what in alike):
                raise Fault(f"the ranks disagree on collective {number} of group {name}: {row}")
        if len({len(column) for column in columns}) > 1:
            raise Fault(f"the ranks ask for {[len(column) for column in columns]} collectives in group {name}")


@contextlib.contextmanager
def offloading_elsewhere():
    """Engines with `offload=True` take what the optimizer updates for other memory than the device's, as on a GPU."""
    here = {"lies_elsewhere": lambda *_: True, "start": device.send_away, "finish": device.finish}
    with (
        mock.patch.multiple(offload, **here),
        mock.patch.object(torch.amp.grad_scaler._MultiDeviceReplicator, "get", sent_by_a_scaler),
    ):
        yield


def sent_by_a_scaler(replicator, _):
    """What torch's scaler does for an optimizer in main memory: it copies a number there, and waits for nobody."""
    number, copy = replicator.master, torch.empty_like(replicator.master)
    kernel = Kernel("a scaler", lambda: copy.copy_(number), [number], [copy], COMPUTING)
    kernel.for_host = copy, Span(copy, True)
    device.hand_over(kernel, True)
    replicator._per_device_tensors[copy.device] = copy
    return copy


@contextlib.contextmanager
def autograd_in_a_thread_of_its_own():
    """Runs each backward as it runs on a GPU: in a thread of the engine's, while the thread that asked sleeps."""
    original = torch.autograd._engine_run_backward
    torch.autograd._engine_run_backward = lambda *args, **keywords: _in_thread(original, args, keywords)
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = original


def _in_thread(function, args, keywords):
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes

    result, failures, stack = [], [], list(modes())

    def run():
        import ctypes

        ctypes.CDLL(None).prctl(15, b"pt_autograd_0", 0, 0, 0)  # PR_SET_NAME, as torch names its own
        try:
            with contextlib.ExitStack() as entered:
                for mode in stack:
                    entered.enter_context(mode)
                result.append(function(*args, **keywords))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return result[0]
