"""How many engines there are: more or fewer by load, and away from nodes that Ray drains.

Tests of other names: drained_nodes in test_elastic.py.
"""
