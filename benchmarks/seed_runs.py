"""Commands of spag-ray, and records of seeds, for the benchmarks that train."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def arguments(document: str, what: Sequence[str], out: str) -> argparse.ArgumentParser:
    """What to do, the seed, where to, and overrides of the configuration."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=what)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("-o", dest="overrides", action="append", default=[], help="key=value, for what is trained")
    return parser


def records_in(out: Path) -> list[dict[str, Any]]:
    """The records of seeds, OUT/SEED.json. Ends this program if there are none."""
    records = [json.loads(path.read_text()) for path in sorted(out.glob("[0-9]*.json"))]
    if not records:
        sys.exit(f"{out} has no record of a finished seed")
    return records


def train(config: str, run: Path, overrides: Sequence[str]) -> None:
    """Train, or resume, to the end."""
    called(["train", config, "--run-dir", str(run), "--resume", *options(overrides)])
    check_finished(run)


def called(command: Sequence[str]) -> None:
    """Run it. Ends this program with the command's exit code if that is not 0."""
    print(f"spag-ray {' '.join(command)}", flush=True)
    ended = subprocess.run([sys.executable, "-m", "spag_ray", *command], check=False)
    if ended.returncode != 0:
        sys.exit(ended.returncode)


def check_finished(run: Path) -> None:
    """Ends this program if the run has not finished: one that was asked to stop ends with exit code 0, too."""
    ended = run / "ended.json"
    how = json.loads(ended.read_text())["ended"] if ended.exists() else "not started"
    if how != "finished":
        sys.exit(f"{run}: {how}; call this again to continue")


def options(overrides: Sequence[str]) -> list[str]:
    return [part for override in overrides for part in ("-o", override)]
