"""The commands: a file each, or for a few that belong together.

Tests of other names: runs in test_cluster.py; evaluate in test_evaluation.py; game in test_game_commands.py;
data, learn, play, train in test_end_to_end.py; match in test_tournament.py; watch_web in test_live.py.
"""
