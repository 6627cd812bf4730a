"""The referee, where it has always been imported from; see games/taboo/referee/."""

from spag_ray.games.taboo.referee.judge import judge, judge_turn

__all__ = ["judge", "judge_turn"]
