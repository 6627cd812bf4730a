"""Which turns of a logged game its run trains on, as far as the log and the configuration say it."""

from __future__ import annotations

from collections.abc import Mapping

from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import Role
from spag_ray.stages import Stage, StageKind
from spag_ray.training_data.game_samples import advantages
from spag_ray.training_data.imitation import imitated_turns
from spag_ray.training_data.information_gain import clipped_gains

NOTHING: Mapping[Role, float] = dict.fromkeys(Role, 0.0)


def trained_turns(
    stage: str, episode: Episode, config: RunConfig, expected: Mapping[Role, float] = NOTHING
) -> dict[int, float | None]:
    """{index of a turn that is trained on: its advantage; None if it is imitated}. Empty for games on held-out words.
    `expected`: each role's baseline; without it, these are rewards before the baseline is subtracted. They are not
    divided by a deviation, which other games decide (`objective.baseline_std`). With an estimator
    by name they are what the game paid. Empty with `objective.drop_agreeing`, because one game does not tell whether
    others of its scenario agreed with it, and where nobody knows what the game paid (`round_in`)."""
    phase = Stage.parse(stage).phase
    if phase not in ("imitation", "self_play") or not _fits(episode):
        return {}
    if phase == "imitation":
        imitation, decay = config.imitation, config.objective.decay
        guesses = config.game.max_guesses
        return dict.fromkeys(imitated_turns(episode, imitation.learn_from, decay, config.imitates_claims, guesses))
    played = round_in(stage, config)
    if config.objective.drop_agreeing or played is None:
        return {}
    objective = config.objective_of(played)
    found = dict(advantages(episode, objective, config.payoffs_of(played), expected))
    for index, gain in clipped_gains(episode, objective).items() if objective.information_gain else ():
        found[index] = found.get(index, 0.0) + objective.information_gain * gain
    return {index: value for index, value in found.items() if episode.turns[index].policy in config.policy_names}


def round_in(stage: str, config: RunConfig) -> Stage | None:
    """A round with the settings that the games in the log of a stage are trained with. None in a stream whose rounds
    differ (self_play.phases): its log does not say in which of them a game is trained on."""
    found, self_play = Stage.parse(stage), config.self_play
    if found.kind is not StageKind.STREAM or not self_play.phases:
        return found
    rounds = [Stage.of_round(number) for number in range(1, self_play.rounds + 1)]
    first = config.payoffs_of(rounds[0]), config.objective_of(rounds[0])
    return rounds[0] if all((config.payoffs_of(each), config.objective_of(each)) == first for each in rounds) else None


def _fits(episode: Episode) -> bool:
    """Whether the verdict is possible for these turns: a damaged log may contain any verdict."""
    verdict, num_turns = episode.verdict, len(episode.turns)
    if verdict.turn is None:
        return verdict.outcome.breaker is None and verdict.length <= num_turns
    return verdict.turn < num_turns and verdict.length <= num_turns
