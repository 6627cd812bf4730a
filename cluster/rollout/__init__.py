"""Play on Ray: engines, the arenas that call them, and how turns travel between the two.

Tests of other names: game_rules in test_games.py; engine_actor in test_remote_policy.py.
"""
