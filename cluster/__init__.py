"""Where it all runs: everything that imports ray.

Tests of other names: console in test_cluster.py; types in test_placement.py.
"""
