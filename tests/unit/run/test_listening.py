"""Where a run's processes listen: on the address that Ray uses for their node, which is loopback for a local Ray."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

OWN_ADDRESSES = sorted({each.address for nic in psutil.net_if_addrs().values() for each in nic if each.family == 2})


JOIN = """
import sys
import psutil
from cluster.runtime.ray_session import use_own_interface
from learners.engine import World, _join
from tests.support.listening import listens_on

host, port = sys.argv[1:]
use_own_interface(host)
_join(World(master=f"{host}:{port}"), timeout_s=60.0)
print("listens on", *sorted(listens_on(psutil.Process())))
"""


@pytest.mark.parametrize("address", OWN_ADDRESSES)
def test_ranks_of_a_cluster_listen_on_the_address_of_their_node(address: str) -> None:
    with socket.create_server((address, 0)) as probe:
        port = probe.getsockname()[1]
    root = Path(__file__).resolve().parents[3]
    chosen = {name: value for name, value in os.environ.items() if not name.endswith("_SOCKET_IFNAME")}
    environment = {**chosen, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", JOIN, address, str(port)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert f"listens on {address}\n" in done.stdout, done.stdout + done.stderr
