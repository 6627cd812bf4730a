"""Adversarial Taboo: its prompts, decks of cards and referees."""
