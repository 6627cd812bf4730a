"""The replay buffer: judged episodes in, whole stages or batches of a stream out.

How old an episode may be: stream.py, by `stream.max_lag`.

Tests of other names: buffer_actor in test_stream.py.
"""
