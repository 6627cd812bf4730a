"""The commands: one file each.

Tests of other names: attach, runs, submit in test_cluster.py; evaluate in test_evaluation.py;
learn, play, reward, train in test_end_to_end.py; match in test_tournament.py; words in test_cli.py.
"""
