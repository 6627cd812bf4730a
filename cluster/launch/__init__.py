"""How a run is started: placed on Ray from here, detached on a cluster, or as a job; and what a job is sent.

Tests of other names: placed_run in test_end_to_end.py.
"""
