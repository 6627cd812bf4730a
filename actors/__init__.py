"""Who plays: policies (vLLM, transformers, scripted) and the arena that lets them play.

Tests of other names: lm_eval_model, lm_eval_tasks in test_evaluation.py; pool in test_arena.py; policy,
scripted_policy, tensors, transformers_policy, vllm_policy, vllm_weights in test_policy_contract.py.
"""
