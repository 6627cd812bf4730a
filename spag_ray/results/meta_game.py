"""The game between versions of a policy, in which each chooses a version to play for it: its Nash equilibrium.

>>> [round(share, 3) for share in equilibrium([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])]       # rock, paper, scissors
[0.333, 0.333, 0.333]
>>> equilibrium([[0, 1], [-1, 0]])
[1.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Sequence


def equilibrium(values: Sequence[Sequence[float]]) -> list[float]:
    """[versions] The shares of a mixture of versions that no version gains from. `values` [versions, versions]: what
    the first gains from the second, on average over both seats; what one gains the other loses. Of several equilibria
    it is the one that the solver finds (scipy's HiGHS), the same one each time."""
    import numpy as np
    from scipy.optimize import linprog

    matrix = np.asarray(values, dtype=float)
    if not np.allclose(matrix, -matrix.T):
        raise ValueError("what one version gains from another, the other has to lose")
    count = len(matrix)
    # The shares x, and the least v that the mixture gains from any version: maximise v.
    found = linprog(
        c=[0.0] * count + [-1.0],
        A_ub=np.column_stack([-matrix.T, np.ones(count)]),
        b_ub=np.zeros(count),
        A_eq=[[1.0] * count + [0.0]],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * count + [(None, None)],
    )
    assert found.x is not None, found.message  # there always is one
    shares = np.clip(found.x[:count], 0.0, 1.0)
    return [float(share) for share in shares / shares.sum()]
