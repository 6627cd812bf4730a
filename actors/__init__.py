"""Play: policies (vLLM, transformers, scripted) and the arena that runs their games.

Tests of other names: engine_process in test_serve.py; lm_eval_model, lm_eval_tasks in test_evaluation.py;
pool in test_arena.py; vllm_adapters in test_adapters.py;
policy, transformers_policy, vllm_policy, vllm_weights in test_policy_contract.py.
"""
