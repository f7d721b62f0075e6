import os
import socket
import sys

import pytest

from zerolab.recording.wire import bytes_sent


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of a connection")
def test_bytes_of_this_process_are_counted_once_and_the_sockets_stay_open():
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as near, server.accept()[0] as far:
        before = bytes_sent()
        if before is None:
            pytest.skip("this kernel does not count the bytes of its TCP connections")
        near.sendall(b"x" * 1000)
        assert bytes_sent() - before == 1000
        assert far.recv(2000) == b"x" * 1000
        far.sendall(b"y" * 500)
        assert bytes_sent() - before == 1500


def test_nobodys_sockets_are_changed_where_new_ones_have_a_timeout():
    """A socket object that is put around a descriptor makes it non-blocking then, for all who use it."""
    left, right = socket.socketpair()
    server = socket.create_server(("127.0.0.1", 0))
    with left, right, server:
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(5)
        try:
            bytes_sent()
        finally:
            socket.setdefaulttimeout(before)
        assert all(os.get_blocking(one.fileno()) for one in (left, right, server))


def test_other_files_and_sockets_do_not_count(tmp_path):
    before = bytes_sent()
    left, right = socket.socketpair()
    with left, right, (tmp_path / "file").open("w") as file:
        left.sendall(b"x" * 100)
        file.write("y")
        assert bytes_sent() == before
