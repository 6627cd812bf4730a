"""The Run, which owns every other actor; its training loop; how it is saved and resumed.

parts.py builds what a run consists of. training.py is the loop, training_verbs.py implements its steps. recovery.py
saves and resumes; checkpoint.py writes the files.

Tests of other names: parts, run, training_verbs in test_end_to_end.py.
"""
