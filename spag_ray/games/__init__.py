"""Games behind the protocol (spag_ray/game/protocol.py), found by their names in a configuration (registry.py)."""
