"""The calls of torch.distributed that are noted, and what each is about: which ranks, how many elements, which peer."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _world

from zerolab.recording.c10d import tensors_in
from zerolab.runtime import board

COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "init_process_group", "monitored_barrier", "new_group", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_tensor", "scatter", "scatter_object_list",
)  # fmt: skip
FUNCTIONAL = {
    "all_gather_single": "all_gather", "all_gather_tensor": "all_gather", "all_gather_single_coalesced": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "all_reduce": "all_reduce", "all_reduce_coalesced": "all_reduce",
    "all_to_all_single": "all_to_all", "broadcast": "broadcast", "permute_tensor": "all_to_all",
    "reduce_scatter_single": "reduce_scatter_tensor", "reduce_scatter_single_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_tensor": "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
}  # fmt: skip
"""What DTensor sends by: functions that return new tensors, which `wait_tensor` waits for."""
POINT_TO_POINT = ("batch_isend_irecv", "irecv", "isend", "recv", "send")
NATIVE_OPERATIONS = {
    "allgather_": "all_gather", "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast", "_allgather_base_": "all_gather", "allgather_into_tensor_coalesced_": "all_gather",
    "allgather_coalesced_": "all_gather", "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor", "alltoall_base_": "all_to_all",
}  # fmt: skip
_SIZED = ("tensor", "flat", "input_tensor", "input", "inputs", "output", "self")
"""Parameters whose size must be the same on all ranks. In all_to_all each pair of ranks has its own."""
_COLLECTED = (
    "all_gather_into_tensor", "all_gather_single", "all_reduce", "reduce_scatter_single", "reduce_scatter_tensor",
)  # fmt: skip
"""What torch only collects within a block of `_coalescing_manager`, at whose end native code sends it as one."""
_PEERS = {"src": "group_src", "dst": "group_dst"}
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_libraries: list[Any] = []  # for as long as the process lives: kernels go with their library


class Request(NamedTuple):
    """Members as on the board, 0 for all ranks; size, -1 where it is not to be compared; peer or root, -1 for none.

    The group's number tells it from others of the same ranks; `travels` has the sizes of several tensors sent as one.
    """

    members: int = 0
    numel: int = -1
    itemsize: int = 0
    peer: int = -1
    group: int = 0
    travels: str = ""


class Reader:
    """Reads the arguments of one function as far as it knows them, and never refuses a call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._names = list(inspect.signature(function).parameters)
        of_pairs = {"input_split_sizes", "src_dst"} & {*self._names}
        self._sized = "" if of_pairs else next((name for name in _SIZED if name in self._names), "")
        self._may_be_collected = function.__name__ in _COLLECTED

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request | None:
        """What this call is about; None for a group that this rank is not part of, and where nothing is sent yet."""
        given = self._given(args, kwargs)
        group = given.get("group")
        # torch lets some of the ranks make a group without the others, who would count differently from then on.
        if group is dist.GroupMember.NON_GROUP_MEMBER or given.get("use_local_synchronization"):
            return None
        if self._may_be_collected and (group or dist.group.WORLD) in _world.pg_coalesce_state:
            return None
        if isinstance(group, (str, tuple, DeviceMesh)):
            group = _resolved(group)
        if self._sized == "self":  # functional collectives, which name it so, count a root within its group
            given["group_src"] = given.pop("src", None)
        numel, itemsize, parts = _sizes(given.get(self._sized))
        members, number = circle_of(group)
        return Request(members, numel, itemsize, _peer(given, group), number, parts)

    def refuse_what_crashes_gloo(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises ValueError for a message to nobody, to this rank itself, or from a GPU's memory: gloo checks none."""
        given = self._given(args, kwargs)
        peers = [given.get(peer) for peer in _PEERS]
        for peer in peers:  # out of bounds, it crashes, or waits where nothing can see it
            if isinstance(peer, int) and not 0 <= peer < dist.get_world_size():
                raise ValueError(f"{name} names rank {peer}, and there are ranks 0 to {dist.get_world_size() - 1} only")
        messages = [(given.get("tensor"), given.get("group"), peers)]
        messages += [(each.tensor, each.group, [each.peer]) for each in given.get("p2p_op_list") or []]
        for tensor, group, peers in messages:
            own = dist.get_rank()
            if name in POINT_TO_POINT and own in peers and dist.get_backend(group) == "gloo":
                raise ValueError(f"{name} names rank {own}, which is this rank itself: nothing needs to be sent")
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu" and dist.get_backend(group) == "gloo":
                raise ValueError(
                    f"{name} is given a tensor on {tensor.device}, and the ranks talk over gloo, which sends from main "
                    "memory: send tensor.cpu(), or use a collective such as broadcast"
                )

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name; of a name that the function does not have, torch itself speaks."""
        return dict(zip(self._names, args, strict=False)) | {
            name: kwargs[name] for name in self._names if name in kwargs
        }


def request_of_native(name: str, args: tuple[Any, ...]) -> Request:
    """What an operation `torch.ops.c10d` is about: the same as of the function of Python's that calls it."""
    handle = next(argument for argument in args if isinstance(argument, torch.ScriptObject))
    group = dist.ProcessGroup.unbox(handle)
    given = args[1] if name in ("all_gather", "reduce_scatter_tensor") else args[0]
    numel, itemsize, parts = (-1, 0, "") if name == "all_to_all" else _sizes(given)
    peer = dist.get_global_rank(group, args[2]) if name == "broadcast" else -1
    members, number = circle_of(group)
    return Request(members, numel, itemsize, peer, number, parts)


def _sizes(given: Any) -> tuple[int, int, str]:
    """Elements, bytes of one of them and, of several tensors that are sent as one, the sizes of each.

    Their sum would hide another order. -1, 0 and nothing if this is no tensor.
    """
    if isinstance(given, torch.Tensor):
        return given.numel(), given.element_size(), ""
    tensors = tensors_in(given)
    sizes = [tensor.numel() for tensor in tensors]
    text = f"{'+'.join(map(str, sizes))} elements" if len(sizes) > 1 else ""
    if len(text) > board.LONGEST_NAME and all(type(size) is int for size in sizes):  # symbols have no hash
        text = f"{len(sizes)} tensors, {hash(tuple(sizes)):x}"
    return (sum(sizes), tensors[0].element_size(), text) if tensors else (-1, 0, "")


def watch_native_code(start: Callable[[str, tuple[Any, ...]], Callable[[Any], None] | None]) -> None:
    """Tell of what native code starts by itself, C++ DDP's reducer or a compiled graph: it calls no Python function.

    It passes through torch's dispatcher as `c10d` operations. A kernel of ours, just above those that communicate, sees
    them and hands them on: autograd's level, and all that lies above Python's, a compiled graph passes by. That costs
    some 30 microseconds an operation and nothing where there is none; a dispatch mode, which a recorder uses, would
    cost that for every operation of the step.

    Args:
        start: is given a name and arguments; what it returns, if anything, is called with the Work.
    """
    # Once in a process: a kernel that is registered twice for one key is an error.
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)
    for operation, name in NATIVE_OPERATIONS.items():
        overload = getattr(torch.ops.c10d, operation).default
        library.impl(operation, _told(overload, name, start), "BackendSelect", with_keyset=True)


def _told(overload: Any, name: str, start: Callable[..., Callable[[Any], None] | None]) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        follow = start(name, args)
        result = overload.redispatch(keyset & _BELOW, *args, **kwargs)
        if follow is not None:
            follow(dist.Work.unbox(result[-1] if isinstance(result, tuple) else result))
        return result

    return kernel


def _resolved(named: Any) -> Any:
    """The group of a name, a mesh, or a mesh and its dimension, all of which functional collectives take."""
    return dist.distributed_c10d._resolve_process_group(_functional_collectives._resolve_group_name(named))


def address_of(tensor: torch.Tensor) -> int:
    """Where a functional collective's result lies: of a wrapper around it, where that lies."""
    return int(getattr(tensor, "elem", tensor).data_ptr())


def circle_of(group: Any) -> tuple[int, int]:
    """A group's ranks as a page of the board has them, 0 for all; and torch's number of it, 0 for the default group.

    Torch counts groups as `new_group` makes them, by all ranks alike. Those that some ranks make without the others, or
    `split_group` makes, have no number, but a name that the ranks may not agree on: those of the same ranks are
    not told apart.
    """
    if not isinstance(group, dist.ProcessGroup) or group is dist.group.WORLD:
        return 0, 0
    ranks, name = dist.get_process_group_ranks(group), group.group_name
    number = int(name) if name.isdecimal() else 0
    return 0 if len(ranks) == dist.get_world_size() else board.members(ranks), number


def _peer(given: Mapping[str, Any], group: Any) -> int:
    for of_all, of_group in _PEERS.items():
        if isinstance(peer := given.get(of_all), int):
            return peer
        if isinstance(within := given.get(of_group), int):
            known = isinstance(group, dist.ProcessGroup) and 0 <= within < group.size()
            return dist.get_global_rank(group, within) if known else within
    return -1
