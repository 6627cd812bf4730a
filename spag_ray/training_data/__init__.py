"""Judged games -> training data: rewards, samples, randomised prompts.

samples.py selects the turns to train on and their advantages; imitation.py the turns to imitate; rewards.py has the
formulas.

Tests of other names: published_rows in test_formats.py; replay in test_plain_text.py.
"""
