"""Resources of the machine: memory, processes, the lock of a run folder, files that are whole or absent.

Tests of other names: shared_memory in test_transfer.py.
"""
