"""The referees: who won, who broke the rules, which characters decided it.

There are two, strict.py and published.py. The other files parse replies for strict.py.

Tests of other names: candidates, guess in test_judge_guess.py; disguise, folding, said_word, skeleton in
test_judge_disguise.py; phrases, published, ruling, strict, word_forms in test_judge.py.
"""
