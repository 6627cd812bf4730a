"""Play on Ray: engines, the arenas that call them, and how turns travel between the two.

Tests of other names: engine_actor in test_remote_policy.py.
"""
