"""Self-play of Adversarial Taboo for language models: the game and its data.

Tests of other names: errors in test_game.py; tokens in test_plain_text.py.
"""

__version__ = "0.2.0"
