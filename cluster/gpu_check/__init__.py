"""Checks that need an NVIDIA GPU: each runs in a process of its own, and one table shows them all.

Nothing here imports ray, vllm or pydantic before a check that needs them begins, so that the learner's half can be seen
where only torch, transformers and DeepSpeed are.

Tests of other names: check, engine_checks, learner_checks, run_checks in test_gpu_check.py.
"""
