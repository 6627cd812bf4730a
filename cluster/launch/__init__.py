"""Starts a run: placed on Ray from here, detached on a cluster, or as a job with the files that it needs.

Tests of other names: detached in test_parcel.py; placed_run in test_end_to_end.py.
"""
