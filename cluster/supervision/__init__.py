"""Detects actors that died or hang, and limits how often they may be restarted.

They are replaced elsewhere: engines and arenas in rollout/engines.py and rollout/arenas.py, learners in
run/recovery.py, the buffer by Ray itself.
"""
