"""Resources of the machine: memory, processes, the lock of a run folder, files that are whole or absent.

Tests of other names: processes in test_folder_lease.py; shared_memory in test_transfer.py.
"""
