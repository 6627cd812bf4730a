"""What the rewards of a game depend on beside its own result: each role's moving average and wins, game by game.

They are in every checkpoint, so a resumed run has them as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.run.checkpoint import RunState
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Role
from spag_ray.training_data.rewards import RoleBaselines, RoleWindow


@dataclass(frozen=True)
class RoleAverages:
    """By the full name of the game. `baselines`: of games with `baseline: moving` or `advantage: rae`. `windows`: the
    last wins, for the role weights of a stream."""

    baselines: dict[str, RoleBaselines]
    windows: dict[str, RoleWindow]

    @classmethod
    def saved_in(cls, state: RunState, config: RunConfig) -> RoleAverages:
        """Those of a checkpoint's state, or of a new run."""
        baselines, windows = {}, {}
        for each in config.each_game:
            name, objective = each.game.full_name, each.objective
            if objective.has_moving_baseline:
                baselines[name] = RoleBaselines(objective.baseline_decay)
                if (values := (state.baselines or {}).get(name)) is not None:
                    baselines[name].values = {role: values[str(role)] for role in Role}
            windows[name] = RoleWindow(config.stream.role_weight_window, state.role_wins.get(name, ""))
        return cls(baselines, windows)

    def added_to(self, state: RunState) -> RunState:
        """The state with these."""
        values = {
            name: {str(role): value for role, value in each.values.items()} for name, each in self.baselines.items()
        }
        wins = {name: window.winners for name, window in self.windows.items()}
        return replace(state, baselines=values or None, role_wins=wins if any(wins.values()) else {})
