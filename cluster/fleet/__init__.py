"""The engines of a run: who they are, in which state, how they come, go, sleep, get weights, and are replaced.

Tests of other names: engine_start, roster in test_fleet.py.
"""
