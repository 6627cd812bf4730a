"""The referees: who won, who broke the rules, which characters decided it.

Both are in judge.py. The other files parse replies for the strict one.

Tests of other names: candidates, guess in test_judge_guess.py; disguise, folding in test_judge_disguise.py;
word_forms in test_judge.py.
"""
