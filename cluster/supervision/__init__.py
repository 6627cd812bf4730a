"""Detects actors that died or hang, and limits how often they may be restarted.

They are replaced elsewhere: engines in fleet/fleet.py, arenas in rollout/arenas.py, learners in
run/recovery.py, the buffer by Ray itself.
"""
