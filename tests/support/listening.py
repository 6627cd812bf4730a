"""Where processes listen, for the tests that promise loopback."""

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
