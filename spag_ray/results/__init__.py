"""Results of runs: matches, ratings, standings, evaluations, the report.

Tests of other names: curves in test_tracking.py; evaluations in test_report.py; line_codec in test_lines.py; matches,
ratings in test_standings.py; trained_turns in test_report.py.
"""
