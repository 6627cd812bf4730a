"""What a run will need, from its configuration: memory, CPUs, GPUs, and the placement group for them.

placement.py computes which actor fits on which node; reservation.py creates the placement group.
"""
