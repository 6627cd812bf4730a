"""The schedules of play: rounds, a stream, a league, a tournament, tasks of lm-evaluation-harness.

Tests of other names: task_evaluation in test_evaluation.py.
"""
