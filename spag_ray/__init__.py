"""Self-play of Adversarial Taboo for language models: the game and its data."""

__version__ = "0.1.0"
