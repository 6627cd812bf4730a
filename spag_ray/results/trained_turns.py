"""Which turns of a logged game its run trains on, as far as the log and the configuration say it."""

from __future__ import annotations

from collections.abc import Mapping

from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import Role
from spag_ray.stages import Stage
from spag_ray.training_data.game_samples import advantages
from spag_ray.training_data.imitation import imitated_turns

NOTHING: Mapping[Role, float] = dict.fromkeys(Role, 0.0)


def trained_turns(
    stage: str, episode: Episode, config: RunConfig, expected: Mapping[Role, float] = NOTHING
) -> dict[int, float | None]:
    """{index of a turn that is trained on: its advantage; None if it is imitated}. Empty for games on held-out words.
    `expected`: each role's baseline; without it, these are rewards before the baseline is subtracted. With an estimator
    by name they are what the game paid. Empty with `objective.drop_agreeing`, because one game does not tell whether
    others of its scenario agreed with it."""
    phase = Stage.parse(stage).phase
    if phase not in ("imitation", "self_play") or not _fits(episode):
        return {}
    if phase == "imitation":
        imitation, decay = config.imitation, config.objective.decay
        return dict.fromkeys(imitated_turns(episode, imitation.learn_from, decay, config.imitates_claims))
    if config.objective.drop_agreeing:
        return {}
    found = advantages(episode, config.objective, config.game.payoffs, expected)
    return {index: value for index, value in found.items() if episode.turns[index].policy in config.policy_names}


def _fits(episode: Episode) -> bool:
    """Whether the verdict is possible for these turns: a damaged log may contain any verdict."""
    verdict, num_turns = episode.verdict, len(episode.turns)
    if verdict.turn is None:
        return verdict.outcome.breaker is None and verdict.length <= num_turns
    return verdict.turn < num_turns and verdict.length <= num_turns
