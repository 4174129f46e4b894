"""Bytes that this process sent over the network, as its kernel counted them.

    before = bytes_sent()
    torch.distributed.all_reduce(gradient)
    print(bytes_sent() - before)

Gloo sends through TCP sockets, also between ranks of one machine, so on CPUs every collective of
`torch.distributed` is counted, with the few bytes in which Gloo says what comes. What goes another way
is not: shared memory (MPI on one machine), NVLink and InfiniBand (NCCL).
"""

import os
import socket
import struct

# What a script says before a count of bytes in a run whose ranks NCCL connects.
NOT_COUNTED = (
    "NCCL sends over NVLink, PCIe, shared memory or InfiniBand, where no bytes are counted: 0 bytes sent "
    "does not mean that nothing was sent."
)
# struct tcp_info of linux/tcp.h: tcpi_bytes_sent (data, with what was sent twice) and, of it,
# tcpi_bytes_retrans (what was sent again), since Linux 4.19.
_SENT = struct.Struct("200x2Q")


def bytes_sent() -> int:
    """Bytes of data sent so far through the TCP connections that are open in this process.

    Take it before and after what is to be measured; a connection that was closed in between is lost.

    Raises:
        RuntimeError: this system does not say (Linux 4.19 or newer does).
    """
    total = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as one:
                if one.type != socket.SOCK_STREAM or one.family == socket.AF_UNIX:
                    continue
                told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed meanwhile, or no TCP
            continue
        if len(told) < _SENT.size:
            raise RuntimeError(
                "this system does not count the bytes of a connection: Linux 4.19 does."
            )
        sent, again = _SENT.unpack_from(told)
        total += sent - again
    return total
