"""The whole of SPAG on one page (schedule `rounds`).

    base model ──> evaluate                                                       on held-out words
        │
        v          expert games ──> winner's turns ──> learner ──> weights v1 ──> evaluate        imitation
        │
        └─> round n: self-play ──> judged episodes ──> buffer ──> winner's turns, shares, role weights
                        ^                                              │
                        └──── weights v(n+1), every engine <──── learner, one pass                evaluate

    last, the newest weights against the imitated model, in both seats.

What waits for what: play waits for the weights of the round before to be on every engine; the learner waits for the
round's last game. Nothing else blocks.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from spag_ray.episode import Episode, GameSample, TurnSample, game_samples
from spag_ray.errors import InputError
from spag_ray.formats import read_games, read_sft
from spag_ray.replay import episode_from_game, sft_samples

if TYPE_CHECKING:
    from cluster.run import Run, StageResult


def train(run: Run) -> list[StageResult]:
    config = run.config
    run.say("starting engines and learner")
    run.engines = run.start_engines(run.model, "policy", 0, config.engine.num_engines, "policy")
    run.learners = run.start_learners()
    evaluate_stage(run, "base")

    newest = run.model
    anchor = run.model
    if config.imitation.enabled:
        imitate(run)
        newest = anchor = run.save("imitated")
        run.publish()
        evaluate_stage(run, "imitated")

    sft = sft_samples(read_sft(config.self_play.sft_file), run.renderer) if config.self_play.sft_file else []
    for number in range(1, config.self_play.rounds + 1):
        spag_round(run, number, sft)
        newest = run.save(f"spag-{number}")
        run.publish()
        evaluate_stage(run, f"spag-{number}")

    run.learners.close()
    run.learners = None
    if newest != anchor and config.evaluation.games:
        head_to_head(run, anchor, "imitated" if config.imitation.enabled else "base")
    run.say("done")
    return run.results


def imitate(run: Run) -> None:
    """Learn the winner's turns of a stronger player's games."""
    config = run.config.imitation
    if config.source == "scripted":
        words = list(run.cards)
        random.Random(run.config.seed).shuffle(words)
        expert = run.expert_seat()
        played = [words[index % len(words)] for index in range(config.games)]
        episodes = run.play("expert", played, expert, expert)
    else:
        rules = run.config.game.rules
        given = read_games(config.source)
        episodes = [episode_from_game(game, i, "expert", run.renderer, rules) for i, game in enumerate(given)]
    games = samples_of(run, episodes, f"imitation from {config.source}")
    run.learn(
        "imitated",
        "imitation",
        games,
        [],
        config.batch_games,
        config.learning_rate,
        config.kl_coeff,
        temperature=1.0,
    )


def spag_round(run: Run, number: int, sft: list[TurnSample]) -> None:
    """Self-play with the newest weights, then one pass over what was decided."""
    config = run.config.self_play
    leases = [run.words.lease() for _ in range(config.games_per_round)]
    seat = run.seat(run.engines, run.config.sampling.temperature)
    episodes = run.play(f"spag-{number}", [lease.word for lease in leases], seat, seat)
    for lease in leases:
        run.words.done(lease)
    games = samples_of(run, episodes, f"round {number}")
    # The published code trains on the plain softmax whatever it sampled at; `spag` on the sampling temperature.
    tempered = run.config.objective.name == "spag" and run.config.sampling.temperature > 0
    temperature = run.config.sampling.temperature if tempered else 1.0
    run.learn(
        f"spag-{number}",
        "self_play",
        games,
        sft,
        config.batch_games,
        config.learning_rate,
        run.config.objective.kl_coeff,
        temperature,
    )


def evaluate_stage(run: Run, name: str) -> None:
    """The stage's policy in both seats, on held-out words."""
    if run.config.evaluation.games:
        seat = run.seat(run.engines, run.config.evaluation.temperature)
        run.evaluate(name, seat, seat, f"eval-{name}", (name, name))


def head_to_head(run: Run, anchor: str, anchor_name: str) -> None:
    """The newest weights against an earlier stage, in both seats."""
    run.say(f"starting an engine for {anchor_name}")
    temperature = run.config.evaluation.temperature
    others = run.seat(run.start_engines(anchor, anchor_name, 0, 1, anchor_name), temperature)
    newest = run.seat(run.engines, temperature)
    name = f"spag-{run.config.self_play.rounds}"
    run.evaluate(name, newest, others, f"match-{name}-{anchor_name}", (name, anchor_name))
    run.evaluate(name, others, newest, f"match-{anchor_name}-{name}", (anchor_name, name))


def samples_of(run: Run, episodes: list[Episode], what: str) -> list[GameSample]:
    games = game_samples(episodes, run.config.objective.decay, run.config.objective.role_weight_cap)
    if not games:
        raise InputError(
            f"{what}: none of {len(episodes)} games was won by either side, so there is nothing to learn; "
            "play more games, or begin with imitation.enabled: true"
        )
    weights = {str(game.role): game.weight for game in games}
    run.metrics.record("samples", what=what, decided=len(games), **{f"{role}_weight": w for role, w in weights.items()})
    return games
