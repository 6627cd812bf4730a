"""Where processes listen, for the tests that promise loopback."""

import os
import socket

import psutil


def listens_on(process: psutil.Process) -> set[str]:
    """The addresses on which a process and its children listen."""
    return set(listening_at(process))


def listening_at(process: psutil.Process) -> list[str]:
    """The same, once for every port."""
    members = {process.pid, *(child.pid for child in process.children(recursive=True))}
    return [
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid in members
    ]


def free_ports(count: int) -> list[int]:
    """Below those that Ray gives to workers, and that a system gives to whoever asks for any."""
    sockets = [socket.socket() for _ in range(200)]
    found = []
    for port, each in zip(range(7100 + os.getpid() % 1000, 9999), sockets, strict=False):
        with each:
            if each.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")
