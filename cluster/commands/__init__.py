"""What a person asks for: one file per command, and what the commands share.

Tests of other names: evaluate in test_evaluation.py; launch, learn, play, reward in test_end_to_end.py; match in
test_tournament.py; output_files, words in test_cli.py; tables in test_tournament.py.
"""
