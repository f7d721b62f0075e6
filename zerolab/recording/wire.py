"""Bytes that really left this process: what the kernel counts for each of its TCP connections."""

import ctypes
import functools
import os
import socket
import struct
import sys

_TCP_INFO = getattr(socket, "TCP_INFO", 11)
# Offsets in struct tcp_info of linux/tcp.h (all there since Linux 4.19).
_NOT_SENT = 144  # tcpi_notsent_bytes: accepted by the kernel, and about to leave
_BYTES_SENT = 200  # tcpi_bytes_sent, then tcpi_bytes_retrans: what had to be sent again
_SIZE = _BYTES_SENT + 16


def bytes_sent() -> int | None:
    """Sum over the TCP connections that are open now, without what was sent twice; None where it cannot be read.

    It is what `ss -ti` prints as `bytes_sent`, plus what is still queued. It does not include TCP and IP headers.
    """
    if sys.platform != "linux":
        return None
    # Not by Path, which takes longer than all the rest: this is asked at both ends of every step.
    sent = [_sent(int(descriptor)) for descriptor in os.listdir("/proc/self/fd")]  # noqa: PTH208
    known = [nbytes for nbytes in sent if nbytes is not None]
    return sum(known) if len(known) == len(sent) else None


_libc = functools.cache(lambda: ctypes.CDLL(None))


def _sent(descriptor: int) -> int | None:
    """One descriptor's bytes: 0 if it is no TCP connection, or closed by now; None if this kernel does not count."""
    # By libc: a `socket.socket` around this descriptor would make it non-blocking for its owner, too, where the learner
    # has called socket.setdefaulttimeout.
    info, size = ctypes.create_string_buffer(_SIZE), ctypes.c_uint32(_SIZE)
    if _libc().getsockopt(descriptor, socket.IPPROTO_TCP, _TCP_INFO, info, ctypes.byref(size)):
        return 0
    if size.value < _SIZE:
        return None
    (waiting,) = struct.unpack_from("=I", info, _NOT_SENT)
    sent, again = struct.unpack_from("=QQ", info, _BYTES_SENT)
    return int(waiting + sent - again)
