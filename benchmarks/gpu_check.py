"""Checks that need an NVIDIA GPU; see cluster/gpu_check/run_checks.py and docs/gpu.md. `spag-ray doctor --gpu` runs all
of them; here they can be chosen.

    python -m benchmarks.gpu_check [--shape qwen2.5-1.5b] [--only attention,head] [--minutes 5]

`--device cpu --shape tiny` runs the code of the checks without a GPU; that shows nothing about a GPU.
"""

from __future__ import annotations

import argparse
import sys

from cluster.gpu_check.check import SHAPES
from cluster.gpu_check.run_checks import MINUTES, run_all


def main() -> int:
    """Returns the exit code: 0 if no check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen2.5-1.5b", help="shape of the random model")
    parser.add_argument("--only", default="", help="checks to run: the beginnings of their names, separated by commas")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all checks together; runs what fits")
    options = parser.parse_args()
    return run_all(options.shape, options.device, options.only, options.minutes)


if __name__ == "__main__":
    sys.exit(main())
