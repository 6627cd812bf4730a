"""Two nodes on this machine, for a batch script of SLURM: each has its own network, processes and /tmp/ray.

`ray symmetric-run` is the head if the address is one of its network's, but not 127.0.0.1, and ends every Ray that it
sees. So each of two needs a network and processes of its own. The nodes are Linux namespaces, which only root can
make. `srun` and `scontrol` do what the script asks of them on these two nodes.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

FIRST, SECOND = "10.99.0.1", "10.99.0.2"

NODES = f"""
set -euo pipefail
mount -t tmpfs none /run && mkdir /run/netns
ip netns add first && ip netns add second
ip link add eth0 netns first type veth peer name eth0 netns second
ip -n first addr add {FIRST}/24 dev eth0 && ip -n second addr add {SECOND}/24 dev eth0
for name in first second; do ip -n $name link set lo up; ip -n $name link set eth0 up; done
node() {{ ip netns exec "$1" unshare --pid --fork --kill-child --mount --mount-proc bash -euc "
    mount -t tmpfs none /tmp/ray; $2"; }}
node second 'while sleep 0.2; do
    if [[ -e $NODES/step ]]; then mv $NODES/step $NODES/running; bash $NODES/running; touch $NODES/done; fi
done' &
node first 'bash $BATCH & while sleep 0.1; do
    if [[ -e $NODES/notice ]]; then rm $NODES/notice; kill -USR1 $!; fi
    kill -0 $! 2>/dev/null || break
done; wait $!'
"""
SRUN = """#!/bin/bash
shift # --kill-on-bad-exit=0
{ export -p && printf '%q ' "$@"; } >"$NODES/step.new" # a step has the environment of the script
mv "$NODES/step.new" "$NODES/step"
code=0
"$@" || code=$?
until [[ -e $NODES/done ]]; do sleep 0.2; done
rm "$NODES/done"
exit "$code"
"""
SCONTROL = f"""#!/bin/bash
if [[ $1 == show ]]; then printf '{FIRST}\\n{SECOND}\\n'; else echo "$@" >>"$NODES/asked"; fi
"""


def missing() -> str | None:
    """What this machine lacks for two nodes; None if it can have them."""
    probe = ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "one", "type", "veth"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True)
    except FileNotFoundError:
        return "unshare is not installed (util-linux)"
    return f"no namespaces can be made here: {done.stderr.strip()}" if done.returncode else None


@contextlib.contextmanager
def sbatch(
    script: Path, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The script on the first of two nodes, which end with the block. `folder` holds what the nodes tell each other: a
    file `notice` in it sends the script SIGUSR1, `asked` holds what it asked scontrol for, and `said` its output."""
    folder.mkdir()
    Path("/tmp/ray").mkdir(exist_ok=True)
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    batch = folder / "batch"
    batch.write_text(f"exec bash {script} {' '.join(arguments)}\n")
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", NODES]
    own = {"NODES": str(folder), "BATCH": str(batch), "PATH": path, "PYTHONUNBUFFERED": "1"}
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment, **slurm, **own},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()  # and with it every process of both nodes
        process.wait()
