"""Bytes that the kernel counts: those of a connection of our own, and those of Gloo's collectives."""

import os
import socket
import struct
import threading

import pytest

from hvdlab.system.tcp_bytes import bytes_sent

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from forked_ranks import on_ranks  # noqa: E402


@pytest.fixture
def connection():
    """Two ends of a TCP connection within this process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname(), timeout=30)
        there, _ = server.accept()
    there.settimeout(30)
    with here, there:
        yield here, there


def send(here, there, count):
    """Send that many bytes, and return when they have all arrived."""
    sender = threading.Thread(target=here.sendall, args=(bytes(count),))
    sender.start()
    left = count
    while left:
        left -= len(there.recv(left))
    sender.join()


def test_exactly_what_was_sent_is_counted(connection):
    before = bytes_sent()
    assert bytes_sent() == before
    send(*connection, 1)
    assert bytes_sent() - before == 1
    send(*connection, 1_000_000)
    assert bytes_sent() - before == 1_000_001
    send(*connection[::-1], 10)  # of either end: both belong to this process
    assert bytes_sent() - before == 1_000_011


def test_only_tcp_is_counted(connection):
    before = bytes_sent()
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        one.sendall(bytes(1000))
        datagram.sendto(bytes(1000), ("127.0.0.1", 9))
        assert bytes_sent() == before
    send(*connection, 7)
    assert bytes_sent() - before == 7


def test_a_closed_connection_is_lost(connection):
    before = bytes_sent()
    send(*connection, 1000)
    connection[0].close()
    assert bytes_sent() <= before


def test_descriptors_are_not_used_up(connection):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        bytes_sent()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_tcp_sends_again_counts_once(connection, monkeypatch):
    before, real = bytes_sent(), socket.socket.getsockopt

    def with_a_loss(self, *arguments):  # as if 5000 bytes had got lost and were sent again
        answer = real(self, *arguments)
        if not isinstance(answer, bytes):
            return answer
        sent, again = struct.unpack_from("QQ", answer, 200)
        return answer[:200] + struct.pack("QQ", sent + 5000, again + 5000) + answer[216:]

    monkeypatch.setattr(socket.socket, "getsockopt", with_a_loss)
    send(*connection, 10)
    assert bytes_sent() - before == 10


def test_an_old_kernel_is_named(connection, monkeypatch):
    real = socket.socket.getsockopt

    def short(self, *arguments):
        answer = real(self, *arguments)
        return answer[:100] if isinstance(answer, bytes) else answer

    monkeypatch.setattr(socket.socket, "getsockopt", short)
    with pytest.raises(RuntimeError, match="Linux 4.19 does"):
        bytes_sent()


def collectives(numbers):
    """Of three collectives of an array: the bytes sent over the bytes of the array."""
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    values = torch.ones(numbers)
    part, whole = torch.empty(numbers // size), torch.empty(numbers)
    found = []
    for act in (
        lambda: dist.all_reduce(values),
        lambda: dist.all_gather_into_tensor(whole, part),
        lambda: dist.reduce_scatter_tensor(part, values),
    ):
        act()  # connections are made
        dist.barrier()
        before = bytes_sent()
        act()
        dist.barrier()  # until then some of what was sent may still wait in the kernel
        found.append((bytes_sent() - before) / (4 * numbers))
    return found


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_gloo_sends(ranks):
    part = (ranks - 1) / ranks
    for all_reduce, all_gather, reduce_scatter in on_ranks(collectives, 240_000, ranks=ranks):
        assert all_reduce == pytest.approx(2 * part, rel=0.01)
        assert all_gather == pytest.approx(part, rel=0.01)
        assert reduce_scatter == pytest.approx(2 * part, rel=0.01)  # twice what is needed
