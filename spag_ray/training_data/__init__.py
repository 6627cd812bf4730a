"""Judged games -> what a learner learns: rewards, samples, randomised prompts.

samples.py says which turns are learned, with which advantage; imitation.py which are imitated; rewards.py has the sums.

Tests of other names: published_rows in test_formats.py; replay in test_plain_text.py.
"""
