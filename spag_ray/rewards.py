"""Rewards, where they have always been imported from; see training_data/rewards.py."""

from spag_ray.training_data.rewards import assign_rewards, decayed_shares, role_weights

__all__ = ["assign_rewards", "decayed_shares", "role_weights"]
