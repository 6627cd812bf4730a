"""Channels for weights: how a version gets from learner ranks into the workers of engines, both halves side by side.

A new channel is a file here, its test, and a line in base.py's CHANNELS. Below the registry (base.py) modules import
torch, and vLLM's weight-transfer interface; nothing else outside actors/ imports vllm.

Tests of other names: base, ipc, nccl, shared_memory, vllm_twins in test_channel_contract.py;
buckets in test_transfer.py.
"""
