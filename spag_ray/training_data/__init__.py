"""Judged games -> training data: rewards, samples, randomised prompts.

game_samples.py selects the turns to train on and their advantages; imitation.py the turns to imitate; rewards.py has
the formulas.

Tests of other names: replay in test_plain_text.py; terms in test_batch_losses.py; game_samples in test_samples.py;
stage_spec in test_learning_rate.py.
"""
