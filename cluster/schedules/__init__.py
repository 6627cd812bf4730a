"""The schedules of play: rounds, a stream, a league, a tournament, tasks of lm-evaluation-harness.

Tests of other names: exploitability in test_games.py; held_out, playground, rounds in test_end_to_end.py;
task_evaluation in test_evaluation.py.
"""
