"""Training: the objectives, the packing of samples into token trees, and the DeepSpeed learner group.

Tests of other names: forward in test_packing.py; step_sums in test_batch_losses.py; engine, lora,
model_folder in test_learner.py; export in test_transfer.py.
"""
