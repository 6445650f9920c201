"""Bytes over this process's connections, and the speed of the loopback interface."""

import os
import socket
import statistics
import struct
import threading
import time

__all__ = ["received", "speed"]

_RECEIVED = 128  # place of `tcpi_bytes_received`, 64 bits, in Linux's `tcp_info`
_STREAM, _BLOCK, _TURNS = 2**27, 2**20, 200


def received() -> int:
    """Counts the bytes that this process's TCP connections have received; on Linux."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                size = _RECEIVED + 8
                # The kernel counts by connection, without the traffic of other
                # processes.
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
        except OSError:  # a file, or closed meanwhile
            continue
        total += struct.unpack_from("=Q", info, _RECEIVED)[0]
    return total


def speed() -> tuple[float, float]:
    """Measures bytes per second of a stream, and seconds of a message to a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = threading.Thread(target=_serve, args=(server,))
        echo.start()
        with socket.create_connection(server.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            turns = []
            for _ in range(_TURNS):
                started = time.perf_counter()
                connection.sendall(b"x")
                connection.recv(1)
                turns.append((time.perf_counter() - started) / 2)
            block = bytes(_BLOCK)
            started = time.perf_counter()
            for _ in range(_STREAM // _BLOCK):
                connection.sendall(block)
            connection.recv(1)
            seconds = time.perf_counter() - started
        echo.join()
    return _STREAM / seconds, statistics.median(turns)


def _serve(server: socket.socket) -> None:
    """Returns single bytes, and then one for a stream."""
    connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_TURNS):
            connection.sendall(connection.recv(1))
        num_bytes = _STREAM
        while num_bytes:
            num_bytes -= len(connection.recv(_BLOCK))
        connection.sendall(b"x")
