"""Model families that transformers does not have, and folders in other formats converted (docs/appendix/baichuan.md).

Import the Auto classes from `spag_ray.families.auto`: there they know these families.

Tests of other names: torch_free in test_libraries.py.
"""
