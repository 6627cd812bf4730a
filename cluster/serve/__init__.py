"""`spag-ray serve`: a page in the browser, on which a person plays against a model.

Tests of other names: app, guard, kept_games in test_visits.py; command, server in test_serve.py.
"""
