"""Who has died or hangs, and how often something may be started again.

Whoever is found here is replaced elsewhere: engines and arenas in rollout/engines.py and rollout/arenas.py, learners in
run/recovery.py, the buffer by Ray itself.
"""
