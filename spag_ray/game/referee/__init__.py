"""The referees: who won, who broke the rules, which characters decided it.

strict.py and published.py are the two; the other files are what strict.py reads a reply with.

Tests of other names: candidates, guess in test_judge_guess.py; disguise, folding, said_word, skeleton in
test_judge_disguise.py; phrases, published, ruling, strict, word_forms in test_judge.py.
"""
