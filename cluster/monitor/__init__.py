"""A run on a terminal: during the run, and at its end.

status_board.py and progress.py make the line that `train` shows during the run, and tables.py the tables that it prints
at the end. The other modules are for `spag-ray watch`.

Tests of other names: frame, run_view, terminal in test_watch.py; tables in test_tournament.py.
"""
