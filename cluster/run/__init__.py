"""The Run, which owns every other actor; the loop it trains by; how it is saved and goes on.

training.py is the loop, training_verbs.py what each of its verbs does; recovery.py saves and resumes, in the files of
checkpoint.py.

Tests of other names: health, run, training_verbs in test_end_to_end.py; run_handle in test_handles.py.
"""
