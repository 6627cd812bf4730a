"""Training: the objectives, the packing of samples into token trees, and the DeepSpeed learner group.

Tests of other names: forward, padding in test_packing.py; batch, engine, lora, model_folder in
test_learner.py; channel_senders, export in test_transfer.py.
"""
