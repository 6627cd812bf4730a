"""A run on a terminal: during the run, and at its end.

status_board.py and progress.py are the line that `train` shows; tables.py is printed at its end; the rest is
`spag-ray watch`.

Tests of other names: frame, run_view, terminal in test_watch.py; tables in test_tournament.py.
"""
