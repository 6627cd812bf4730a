"""The referees: who won, who broke the rules, which characters decided it.

There are two, strict.py and published.py. The other files parse replies for strict.py.

Tests of other names: candidates, guess in test_judge_guess.py; disguise, folding, skeleton in test_judge_disguise.py;
phrases, published, strict, word_forms in test_judge.py.
"""
