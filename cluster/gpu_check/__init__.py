"""Checks that need an NVIDIA GPU. Each runs in a process of its own; one table shows them all.

ray, vllm and pydantic are imported only by the checks that need them. So the learner's checks run on a machine that
only has torch, transformers and DeepSpeed.

Tests of other names: check, engine_checks, learner_checks, processes, run_checks, warm in
test_gpu_check.py.
"""
