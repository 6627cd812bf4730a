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

from cluster.learning_policy import Lesson
from spag_ray.config import BreachRule, ObjectiveConfig
from spag_ray.episode import Episode
from spag_ray.errors import InputError
from spag_ray.formats import holds_games, read_games, read_samples, read_sft
from spag_ray.game import Role
from spag_ray.replay import episode_from_game, published_samples, sft_games, sft_samples
from spag_ray.rewards import RoleBaselines
from spag_ray.samples import GameSample, TurnSample, game_samples
from spag_ray.varied import load_varied, rerendered

if TYPE_CHECKING:
    from cluster.run import Run, StageResult


def train(run: Run) -> list[StageResult]:
    config = run.config
    run.say("starting engines and learner")
    run.start_policies()
    evaluate_stage(run, "base")

    anchor = {policy.name: policy.model for policy in run.policies}
    anchor_name = "base"
    if config.imitation.enabled:
        imitate(run)
        anchor, anchor_name = run.save("imitated"), "imitated"
        run.publish()
        evaluate_stage(run, "imitated")

    baselines = RoleBaselines(config.objective.baseline_decay) if config.objective.baseline == "moving" else None
    sft = sft_samples(read_sft(config.self_play.sft_file), run.renderer) if config.self_play.sft_file else []
    for number in range(1, config.self_play.rounds + 1):
        spag_round(run, number, sft, baselines)
        run.save(f"spag-{number}")
        run.publish()
        evaluate_stage(run, f"spag-{number}")

    for policy in run.policies:
        policy.close_learners()
    if config.self_play.rounds and config.evaluation.games:
        head_to_head(run, anchor, anchor_name)
    run.say("done")
    return run.results


def imitate(run: Run) -> None:
    """Learn the winner's turns of a stronger player's games, or rows of training data, and SFT rows beside them."""
    config = run.config.imitation
    games: list[GameSample]
    if config.source == "scripted":
        words = list(run.cards)
        random.Random(run.config.seed).shuffle(words)
        expert = run.expert_seat()
        played = [words[index % len(words)] for index in range(config.games)]
        games = imitation_samples(run, run.play("expert", played, expert, expert))
    elif holds_games(config.source):
        given = enumerate(read_games(config.source))
        rules = run.config.game.rules
        episodes = [episode_from_game(game, number, "expert", run.renderer, rules) for number, game in given]
        games = imitation_samples(run, episodes)
    else:
        games, rows = published_samples(read_samples(config.source), run.tokenizer)
        games += sft_games(rows)
    if config.sft_file:
        games += sft_games(sft_samples(read_sft(config.sft_file), run.renderer))
        random.Random(run.config.seed).shuffle(games)
    run.learn(Lesson("imitated", "imitation", games, [], config.batch_games, config.learning_rate, config.kl_coeff))


def spag_round(run: Run, number: int, sft: list[TurnSample], baselines: RoleBaselines | None) -> None:
    """Self-play with the newest weights, then one pass over what was decided."""
    config = run.config.self_play
    leases = [run.words.lease() for _ in range(config.games_per_round)]
    temperature = run.config.sampling.temperature
    attacker, defender = (run.seat(run.policy_of(role).engines, temperature) for role in Role)
    episodes = run.play(f"spag-{number}", [lease.word for lease in leases], attacker, defender)
    for lease in leases:
        run.words.done(lease)
    games = samples_of(run, episodes, f"round {number}", run.config.objective, run.config.game.breach, baselines)
    # The published code trains on the plain softmax whatever it sampled at; `spag` on the sampling temperature.
    tempered = run.config.objective.name == "spag" and temperature > 0
    run.learn(
        Lesson(
            f"spag-{number}",
            "self_play",
            games,
            sft,
            config.batch_games,
            config.learning_rate,
            run.config.objective.kl_coeff,
            temperature if tempered else 1.0,
        )
    )


def evaluate_stage(run: Run, name: str) -> None:
    """The stage's policies, each in its seat, on held-out words."""
    if run.config.evaluation.games:
        attacker, defender = (run.seat(run.policy_of(role).engines, run.config.evaluation.temperature) for role in Role)
        run.evaluate(name, attacker, defender, f"eval-{name}", (name, name))


def head_to_head(run: Run, anchor: dict[str, str], anchor_name: str) -> None:
    """The newest weights against an earlier stage, in both seats."""
    run.say(f"starting an engine for {anchor_name}")
    temperature = run.config.evaluation.temperature
    earlier = {
        name: run.seat(run.start_engines(model, f"{anchor_name}-{name}", 0, 1, f"{anchor_name}-{name}"), temperature)
        for name, model in anchor.items()
    }
    newest = {policy.name: run.seat(policy.engines, temperature) for policy in run.policies}
    attacker, defender = (run.policy_of(role).name for role in Role)
    name = f"spag-{run.config.self_play.rounds}"
    run.evaluate(name, newest[attacker], earlier[defender], f"match-{name}-{anchor_name}", (name, anchor_name))
    run.evaluate(name, earlier[attacker], newest[defender], f"match-{anchor_name}-{name}", (anchor_name, name))


def imitation_samples(run: Run, episodes: list[Episode]) -> list[GameSample]:
    """The winner's turns alone, whatever self-play learns from: imitation pushes up all that it is given."""
    objective = run.config.objective.model_copy(update={"learn_from": "winners"})
    return samples_of(run, episodes, "imitation", objective, "discard", sampled=False)


def samples_of(
    run: Run,
    episodes: list[Episode],
    what: str,
    objective: ObjectiveConfig,
    breach: BreachRule,
    baselines: RoleBaselines | None = None,
    sampled: bool = True,
) -> list[GameSample]:
    """What is learned from the episodes, under the prompts they were played with or under others."""
    config = run.config
    if config.render == "varied":
        prompts = load_varied(config.varied_prompts)
        episodes, sampled = rerendered(episodes, prompts, run.tokenizer, config.seed), False
    games = game_samples(episodes, objective, breach, baselines, sampled)
    if not games:
        raise InputError(
            f"{what}: none of {len(episodes)} games was won by either side, so there is nothing to learn; "
            "play more games, or begin with imitation.enabled: true"
        )
    weights = {str(game.role): game.weight for game in games}
    run.metrics.record("samples", what=what, decided=len(games), **{f"{role}_weight": w for role, w in weights.items()})
    return games
