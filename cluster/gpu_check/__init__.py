"""What only a machine with an NVIDIA GPU can show: each check in a process of its own, and one table of them.

Nothing here imports ray, vllm or pydantic before a check that needs them begins, so that the learner's half can be seen
where only torch, transformers and DeepSpeed are.

Tests of other names: check, engine_checks, learner_checks, run_checks in test_gpu_check.py.
"""
