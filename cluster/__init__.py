"""Everything that runs on Ray: the only package that imports ray.

Tests of other names: console in test_cluster.py; guarded in test_cli.py; types in test_placement.py.
"""
