"""Checks that need an NVIDIA GPU; see cluster/gpu_check/run_checks.py and docs/gpu.md.

python -m benchmarks.gpu_check [--shape qwen2.5-1.5b] [--only attention,head] [--minutes 5]
"""

from __future__ import annotations

import sys

from cluster.gpu_check.run_checks import main

if __name__ == "__main__":
    sys.exit(main())
