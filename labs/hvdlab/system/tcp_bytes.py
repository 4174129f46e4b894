"""Count the bytes that this process sent over the network, as the kernel reports them.

    before = bytes_sent()
    torch.distributed.all_reduce(gradient)
    print(bytes_sent() - before)

Gloo sends through TCP sockets, also between ranks of one machine, so on CPUs every collective of
`torch.distributed` is counted, with the few bytes of Gloo's headers. Other transports are not counted:
shared memory (MPI on one machine), NVLink and InfiniBand (NCCL).
"""

import os
import socket
import struct

# What a script prints before a count of bytes if NCCL connects its ranks.
NOT_COUNTED = (
    "NCCL sends over NVLink, PCIe, shared memory or InfiniBand, where no bytes are counted: 0 bytes sent "
    "does not mean that nothing was sent."
)
# struct tcp_info of linux/tcp.h: tcpi_bytes_sent (data, including retransmissions) and
# tcpi_bytes_retrans (the retransmissions), since Linux 4.19.
_SENT = struct.Struct("200x2Q")


def bytes_sent() -> int:
    """Return the bytes of data sent so far through the TCP connections that are open in this process.

    Call it before and after a measurement. The bytes of a connection that was closed in between are lost.

    Raises:
        RuntimeError: this system does not count them. Linux 4.19 or newer does.
    """
    total = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as connection:
                if connection.type != socket.SOCK_STREAM or connection.family == socket.AF_UNIX:
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # it was closed in the meantime, or is not TCP
            continue
        if len(info) < _SENT.size:
            raise RuntimeError(
                "this system does not count the bytes of a connection: Linux 4.19 does."
            )
        sent, again = _SENT.unpack_from(info)
        total += sent - again
    return total
