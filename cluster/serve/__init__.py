"""Pages in the browser: `spag-ray serve`, on which a person plays against a model, and `spag-ray watch --web`.

Tests of other names: app, kept_games in test_visits.py; server in test_serve.py.
"""
