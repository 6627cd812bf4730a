"""Which turns of a stronger player's games are imitated.

    games = imitation_samples(episodes, ObjectiveConfig(), learn_from="both")

Imitation raises the probability of all its samples, so a turn that lost its game and ties are left out. `all` keeps
the reply of a defender that was led to say the word: without such replies no trap works, so none can be trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import ImitatedSides
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import EndReason, Role
from spag_ray.training_data.game_samples import early_guesses_of, game_samples
from spag_ray.training_data.rewards import decayed_shares
from spag_ray.training_data.samples import GameSample, Sample


def imitation_samples(
    episodes: Sequence[Episode],
    objective: ObjectiveConfig,
    learn_from: ImitatedSides,
    claims: bool = True,
    max_guesses: int = 1,
) -> list[GameSample]:
    """Decided games -> their imitated turns, in the order given.

    With `winners`, games have the weight of their winner's role, as in self-play. With `both` and `all`, each game
    trains both seats, so every game has weight 1. Without `claims`, the turn in which the defender named the word is
    left out. Wrong guesses that ended no game (`max_guesses` above 1) are never imitated.
    """
    if learn_from == "winners":
        # Estimators are of self-play, and so is their `role_weights: none`.
        balance = objective.role_weights if objective.advantage == "spag" else "balanced"
        plain = ObjectiveConfig(role_weights=balance, role_weight_cap=objective.role_weight_cap)
        # A breach has no winner, but a game may pay for it: it is no turn to imitate.
        episodes = [episode for episode in episodes if episode.verdict.outcome.winner is not None]
        weights = {game.episode_id: game.weight for game in game_samples(episodes, plain, sampled=False)}
    games = []
    for episode in episodes:
        shares = imitated_turns(episode, learn_from, objective.decay, claims, max_guesses)
        turns = tuple(
            Sample(turn.prompt_ids, turn.token_ids, shares[index], role=turn.role, forced=turn.forced)
            for index, turn in enumerate(episode.turns)
            if index in shares and turn.token_ids
        )
        if turns and (learn_from != "winners" or episode.episode_id in weights):  # a win may pay the winner nothing
            weight = weights[episode.episode_id] if learn_from == "winners" else 1.0
            games.append(GameSample(episode.episode_id, episode.verdict.outcome.winner, weight, turns))
    return games


def imitated_turns(
    episode: Episode, learn_from: ImitatedSides, decay: float, claims: bool = True, max_guesses: int = 1
) -> dict[int, float]:
    """{index of an imitated turn: its share}; the shares of each seat sum to 1. The loser's turn that lost the game is
    left out, except with `all` any but a wrong guess, such as a reply that said the word. Without `claims`, the turn in
    which the defender named the word is left out too, and always wrong guesses that ended no game (`max_guesses` above
    1). Empty for a game without a winner."""
    verdict, winner = episode.verdict, episode.verdict.outcome.winner
    if winner is None:
        return {}
    early = early_guesses_of(episode) if max_guesses > 1 else []
    shares: dict[int, float] = {}
    for role in [winner] if learn_from == "winners" else list(Role):
        is_claim = role is winner is Role.DEFENDER
        walked_in = learn_from == "all" and (
            verdict.payoffs is not None or verdict.end_reason is not EndReason.WRONG_GUESS
        )
        lost = role is winner.other and not walked_in
        left_out = verdict.turn if lost or (is_claim and not claims) else None
        indices = [index for index in episode.turns_of(role) if index != left_out and index not in early]
        if indices:
            shares |= dict(zip(indices, decayed_shares(len(indices), decay), strict=True))
    return dict(sorted(shares.items()))
