"""A run's configuration: its parts, how a file is read.

Tests of other names: engine in test_engine_range.py; loading, opponents, parts, run in test_config.py;
objective in test_payoffs.py; games in test_game_config.py.
"""
