"""Ray itself (sessions, tokens, nodes), the run folder, and files that a command writes.

Tests of other names: run_folder in test_end_to_end.py; output_files in test_cli.py.
"""
