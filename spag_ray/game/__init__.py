"""Adversarial Taboo: rules, words, decks, prompts, how a game can end.

The texts of prompts are in configs/prompts/.

Tests of other names: deck_file in test_decks.py; game_end in test_end_reason.py; prompt_file in test_prompts.py; rules,
turn in test_game.py.
"""
