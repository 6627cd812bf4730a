"""Judged games: in memory, on the wire, in the log, in the published files.

The record of a game on disk: wire.py.

Tests of other names: log in test_episode_log.py; wire in test_episode.py.
"""
