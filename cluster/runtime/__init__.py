"""Ray itself and the run folder: sessions, tokens, nodes.

Tests of other names: run_folder in test_end_to_end.py.
"""
