"""Adversarial Taboo: its prompts, decks of cards, expert and referees. Texts of prompts: configs/prompts/.

Tests of other names: prompt_file in test_prompts.py; expert in test_scripted_policy.py; game in test_recorded_games.py.
"""
