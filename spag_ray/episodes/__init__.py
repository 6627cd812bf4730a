"""Judged games: in memory, on the wire, in the log, in the published files.

The record of a game on disk: wire.py.

Tests of other names: game_count in test_replay_buffer.py; log in test_episode_log.py; wire in test_episode.py.
"""
