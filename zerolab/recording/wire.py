"""Bytes that really left this process: what the kernel counts for each of its TCP connections."""

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

    It is what `ss -ti` prints as `bytes_sent`, and what is only waiting its turn. Headers of TCP and IP are not in it.
    """
    if sys.platform != "linux":
        return None
    total = 0
    # Not by Path, which takes longer than all the rest: this is asked at both ends of every step.
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):  # noqa: PTH115
                continue
            sent = _sent(int(descriptor))
        except OSError:
            continue  # closed between the listing and here
        if sent is None:
            return None
        total += sent
    return total


def _sent(descriptor: int) -> int | None:
    """One socket's bytes: 0 if it is no TCP connection, None if this kernel does not count."""
    connection = socket.socket(fileno=descriptor)
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return 0
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
    finally:
        connection.detach()  # it is somebody else's: look, and leave it open
    if len(info) < _SIZE:
        return None
    (waiting,) = struct.unpack_from("=I", info, _NOT_SENT)
    sent, again = struct.unpack_from("=QQ", info, _BYTES_SENT)
    return int(waiting + sent - again)
