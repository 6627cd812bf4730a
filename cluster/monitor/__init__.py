"""A run as it goes on, on a terminal.

status_board.py and progress.py are the line that `train` shows; the rest is `spag-ray watch`.

Tests of other names: frame, run_view, terminal in test_watch.py.
"""
