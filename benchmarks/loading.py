"""Host memory for loading a model: each rank loads its part of every weight (ZeRO-3), or all of it.

    python -m benchmarks.loading [--ranks 4] [--layers 22] [--stored float32]      1.1e9 random weights; some minutes

A folder is written, then read by one process per rank at the same time, in bfloat16 and without an optimiser: first by
ranks that divide the weights, then by ranks that each read all of them, as before. The figures are each rank's
anonymous resident memory above its value after joining the group, at the end and at most, as shares of a full copy.
Whole weights stored in the wanted dtype are mapped from their file, so they take no memory here until they are copied
to a GPU. JSON as the last line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import machine
from cluster.gpu_check.check import write_random_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=22, help="44e6 weights each")
    parser.add_argument("--hidden-size", type=int, default=2048)
    parser.add_argument("--stored", choices=("bfloat16", "float32"), default="bfloat16", help="the files' dtype")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        measure_rank(json.loads(options.rank))
        return
    with tempfile.TemporaryDirectory() as folder:
        stored = getattr(torch, options.stored)
        num_bytes = write_model(Path(folder), options.layers, options.hidden_size, stored)
        found = {how: measure(folder, how, options.ranks, num_bytes) for how in ("parts", "whole")}
    for how, shares in found.items():
        print(
            f"{how:6} at the end {shares['end']:.2f} of a copy per rank, at most {shares['peak']:.2f}; {shares['s']} s"
        )
    about = {"weights_bytes": num_bytes, "stored": options.stored}
    print(json.dumps(about | {"ranks": options.ranks, "machine": machine(), **found}))


def write_model(folder: Path, layers: int, hidden_size: int, stored: torch.dtype) -> int:
    """Writes a random Llama in this dtype; returns the bytes of its weights in bfloat16."""
    shape = {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 11 // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    }
    return 2 * write_random_model(folder, shape, stored)


def measure(folder: str, how: str, ranks: int, num_bytes: int) -> dict[str, float]:
    """The figures of the rank that took most."""
    import socket

    command = [sys.executable, "-m", "benchmarks.loading", "--rank"]
    with socket.socket() as held:  # until the ranks have met: rank 0 may bind the port again, others may not
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{held.getsockname()[1]}"
        told = [{"folder": folder, "how": how, "rank": rank, "size": ranks, "master": master} for rank in range(ranks)]
        processes = [subprocess.Popen([*command, json.dumps(each)], stdout=subprocess.PIPE, text=True) for each in told]
        outputs = [process.communicate(timeout=900)[0] for process in processes]
    for process in processes:
        if process.returncode != 0:
            sys.exit(f"a rank ended with {process.returncode}")
    lines = [json.loads(output.strip().splitlines()[-1]) for output in outputs]
    most = {key: max(line[key] for line in lines) for key in ("end", "peak", "s")}
    return {"end": round(most["end"] / num_bytes, 3), "peak": round(most["peak"] / num_bytes, 3), "s": most["s"]}


def measure_rank(told: dict[str, Any]) -> None:
    from learners.engine import Partition, World
    from learners.learner import _load
    from learners.model_folder import load_model
    from spag_ray.config.parts import LearnerConfig
    from spag_ray.host.memory import release_freed_memory

    config = LearnerConfig(zero_stage=3, num_threads=1, dtype="bfloat16")
    torch.set_num_threads(1)
    world = World(told["rank"], told["size"], told["rank"], told["master"])
    Partition(config, world)  # joins the group
    torch.distributed.barrier()
    before, seen, is_over = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            seen.append(anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    if told["how"] == "parts":
        model = _load(told["folder"], config, world)
    else:
        model = load_model(told["folder"], torch.bfloat16, "sdpa")
        release_freed_memory()
    seconds = time.perf_counter() - began
    end = anonymous_bytes() - before
    is_over.set()
    watcher.join()
    torch.distributed.barrier()
    assert any(True for _ in model.parameters())
    print(json.dumps({"end": end, "peak": max(max(seen) - before, end), "s": round(seconds, 1)}), flush=True)


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process: memory that is not mapped from a file."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
