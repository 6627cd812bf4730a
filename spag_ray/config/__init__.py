"""A run's configuration: its parts, how a file is read, which files are shipped.

Tests of other names: engine in test_engine_range.py; files, loading, opponents, parts, run, shipped in test_config.py;
objective in test_payoffs.py; games in test_game_config.py.
"""
