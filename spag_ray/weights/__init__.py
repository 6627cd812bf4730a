"""A version of the weights as buckets of bytes, and how they cross processes.

Tests of other names: shared_memory, snapshot in test_transfer.py.
"""
