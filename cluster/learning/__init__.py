"""The learner group on Ray, what it trains on in a stage, and how its weights reach the engines.

Every channel for weights is opened and used here; what is specific to one is in spag_ray/channels/.

Tests of other names: direct_channel in test_transfer.py; learner_actor in test_learner_group.py;
policy_training in test_learning_policy.py; weight_sync in test_remote_policy.py.
"""
