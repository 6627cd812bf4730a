"""A version of the weights as buckets of bytes, and how they cross processes.

Tests of other names: snapshot in test_transfer.py.
"""
