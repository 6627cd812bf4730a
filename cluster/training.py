"""The whole of SPAG on one page.

    base model ──> evaluate                                                       on held-out words
        │
        v          expert games ──> winner's turns ──> learner ──> weights v1 ──> evaluate        imitation
        │
        └─> round n: self-play ──> judged episodes ──> buffer ──> winner's turns, shares, role weights
                        ^                                              │
                        └──── weights v(n+1), every engine <──── learner, one pass                evaluate

    last, the newest weights against the imitated model, in both seats.

Every stage ends with a checkpoint, before its weights are played: what is on disk is then enough to go on from there
(RunState says where), and games that were played since are in the log and are not played again.

What waits for what, in schedule `rounds`: play waits for the weights of the round before to be on every engine; the
learner waits for the round's last game. In schedule `stream` a round is several versions long:

        ┌─ play, as far as permits go ──> judged episodes ──> buffer ──> games_per_version of them, none too old ─┐
        └─ weights, each engine when sync.update lets it <── learner, one pass <─────────────────────────────────┘

play waits for permits alone (cluster/stream.py), the learner for a version's games. Nothing else blocks.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from cluster.checkpoint import RunState
from cluster.lesson import Lesson
from spag_ray.config import BreachRule, ObjectiveConfig
from spag_ray.episode import Episode
from spag_ray.errors import InputError, LearnersLostError, StopRequestedError
from spag_ray.formats import holds_games, read_games, read_samples, read_sft
from spag_ray.game import Role
from spag_ray.replay import episode_from_game, published_samples, sft_games, sft_samples
from spag_ray.rewards import RoleBaselines
from spag_ray.samples import GameSample, TurnSample, game_samples, imitation_objective
from spag_ray.varied import load_varied, rerendered

if TYPE_CHECKING:
    from cluster.run import Run
    from spag_ray.matches import Match

MAX_UNDECIDED = 5  # versions of a stream in a row without a decided game


def train(run: Run) -> list[Match]:
    run.start_policies()
    lost: LearnersLostError | None = None
    while True:
        try:
            if lost is not None:
                run.recovery.restart_learners(lost)
            return go_on(run, run.recovery.restore())
        except LearnersLostError as error:
            lost = error


def go_on(run: Run, state: RunState) -> list[Match]:
    """From where `state` says to the end."""
    config = run.config
    if not state.order:
        run.recovery.say_how_long()
    if not state.stage:
        evaluate_stage(run, "base")
        if config.imitation.enabled:
            imitate(run)
            run.save("imitated")
            state = replace(state, stage="imitated")
            state = run.recovery.checkpoint("imitated", state)
            run.publish()
    if state.stage:
        evaluate_stage(run, state.stage)

    baselines = role_baselines(config.objective, state)
    sft = sft_samples(read_sft(config.self_play.sft_file), run.renderer) if config.self_play.sft_file else []
    run.league.start()
    if not any(
        policy.is_in_stage for policy in run.policies
    ):  # weights on the way from one version to the next are nobody's opponents
        run.league.new_version()
    if config.schedule == "stream" and state.rounds < config.self_play.rounds:
        state = stream_rounds(run, state, sft, baselines)
    for number in range(state.rounds + 1, config.self_play.rounds + 1):
        state = spag_round(run, number, state, sft, baselines)
        run.publish()
        run.league.new_version()
        evaluate_stage(run, state.stage)

    run.end_learning()
    if config.self_play.rounds and config.evaluation.games:
        head_to_head(run, "imitated" if config.imitation.enabled else "base")
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


def spag_round(
    run: Run, number: int, state: RunState, sft: list[TurnSample], baselines: RoleBaselines | None
) -> RunState:
    """Self-play with the newest weights, then one pass over what was decided."""
    config = run.config.self_play
    stage = f"spag-{number}"
    leases = [run.words.lease() for _ in range(config.games_per_round)]
    episodes = run.self_play(stage, [lease.word for lease in leases])
    for lease in leases:
        run.words.done(lease)
    games = self_play_samples(run, episodes, f"round {number}", baselines)
    run.learn(self_play_lesson(run, stage, games, sft))
    run.save(stage)
    return run.recovery.checkpoint(stage, replace(state, stage=stage, rounds=number, baselines=as_json(baselines)))


def stream_rounds(run: Run, state: RunState, sft: list[TurnSample], baselines: RoleBaselines | None) -> RunState:
    """All rounds while play goes on: a version of the weights for every `games_per_version` games."""
    config = run.config
    per_version = config.stream.games_per_version
    steps_per_version = max(1, per_version // config.self_play.batch_games)
    versions_per_round = config.self_play.games_per_round // per_version
    num_parts = config.self_play.rounds * versions_per_round
    num_undecided = 0
    with run.streaming(state.stream) as stream:
        for part in range(state.parts, num_parts):
            round_number, place = part // versions_per_round + 1, part % versions_per_round + 1
            name = f"spag-{round_number}"
            try:
                episodes = stream.next_batch(f"{name}, version {place} of {versions_per_round}: play")
            except StopRequestedError:  # here the learner is where `state` says
                if run.recovery.time_to_save():
                    run.recovery.checkpoint(f"version-{part}", state)
                raise
            games = self_play_samples(run, episodes, name, baselines, may_be_empty=True)
            num_undecided = 0 if games else num_undecided + 1
            if num_undecided == MAX_UNDECIDED:
                raise nothing_to_learn(f"{MAX_UNDECIDED} versions in a row", MAX_UNDECIDED * per_version)
            lesson = self_play_lesson(run, name, games, sft)
            batch_games = max(1, -(-len(games) // steps_per_version))
            stage_steps = num_parts * steps_per_version
            run.learn(replace(lesson, batch_games=batch_games, part_of="stream", stage_steps=stage_steps))
            run.publish()
            state = replace(state, parts=part + 1, stream=stream.learned(), baselines=as_json(baselines))
            run.league.new_version()
            if place == versions_per_round:
                state = replace(state, stage=name, rounds=round_number)
                run.save(name)
            is_due = (part + 1) % config.checkpoint.every_versions == 0 or run.recovery.is_wanted
            if place == versions_per_round or is_due:
                state = run.recovery.checkpoint(f"version-{part + 1}", state)
            if place == versions_per_round:
                evaluate_stage(run, name)
    return state


def role_baselines(objective: ObjectiveConfig, state: RunState) -> RoleBaselines | None:
    if objective.baseline != "moving":
        return None
    baselines = RoleBaselines(objective.baseline_decay)
    if state.baselines is not None:
        baselines.values = {role: state.baselines[str(role)] for role in Role}
    return baselines


def as_json(baselines: RoleBaselines | None) -> dict[str, float] | None:
    return None if baselines is None else {str(role): value for role, value in baselines.values.items()}


def self_play_lesson(run: Run, stage: str, games: list[GameSample], sft: list[TurnSample]) -> Lesson:
    config = run.config
    # The published code trains on the plain softmax whatever it sampled at; `spag` on the sampling temperature.
    temperature = config.sampling.temperature
    tempered = config.objective.name == "spag" and temperature > 0
    return Lesson(
        stage,
        "self_play",
        games,
        sft,
        config.self_play.batch_games,
        config.self_play.learning_rate,
        config.objective.kl_coeff,
        temperature if tempered else 1.0,
    )


def evaluate_stage(run: Run, name: str) -> None:
    """The stage's policies, each in its seat, on held-out words; and on tasks of lm-evaluation-harness."""
    if run.config.evaluation.games:
        attacker, defender = (run.policy_seat(role, run.config.evaluation.temperature) for role in Role)
        run.evaluate(attacker, defender, f"eval-{name}", (name, name))
    run.task_evaluation.stage(name)


def head_to_head(run: Run, anchor_name: str) -> None:
    """The newest weights against an earlier stage, in both seats."""
    run.say(f"starting an engine for {anchor_name}")
    temperature = run.config.evaluation.temperature
    earlier = {}
    for policy in run.policies:
        pool = f"{anchor_name}-{policy.name}"
        model = policy.model if anchor_name == "base" else str(policy.saved(anchor_name))
        run.engines.start(model, pool, pool, 1)
        earlier[policy.name] = run.seat(pool, pool, model, temperature)
    newest = {role: run.policy_seat(role, temperature) for role in Role}
    attacker, defender = (run.policy_of(role).name for role in Role)
    name = f"spag-{run.config.self_play.rounds}"
    run.evaluate(newest[Role.ATTACKER], earlier[defender], f"match-{name}-{anchor_name}", (name, anchor_name))
    run.evaluate(earlier[attacker], newest[Role.DEFENDER], f"match-{anchor_name}-{name}", (anchor_name, name))


def imitation_samples(run: Run, episodes: list[Episode]) -> list[GameSample]:
    objective = imitation_objective(run.config.objective)
    return samples_of(run, episodes, "imitation", objective, "discard", sampled=False)


def self_play_samples(
    run: Run, episodes: list[Episode], what: str, baselines: RoleBaselines | None, may_be_empty: bool = False
) -> list[GameSample]:
    """The learner's own turns; who won against whom is kept."""
    run.league.record(episodes)
    config = run.config
    learning = {policy.name for policy in run.policies}
    return samples_of(
        run,
        episodes,
        what,
        config.objective,
        config.game.breach,
        baselines,
        learning=learning,
        may_be_empty=may_be_empty,
    )


def samples_of(
    run: Run,
    episodes: list[Episode],
    what: str,
    objective: ObjectiveConfig,
    breach: BreachRule,
    baselines: RoleBaselines | None = None,
    sampled: bool = True,
    learning: set[str] | None = None,
    may_be_empty: bool = False,
) -> list[GameSample]:
    """What is learned from the episodes, under the prompts they were played with or under others."""
    config = run.config
    if config.render == "varied":
        prompts = load_varied(config.varied_prompts)
        episodes, sampled = rerendered(episodes, prompts, run.tokenizer, config.seed), False
    games = game_samples(episodes, objective, breach, baselines, sampled, learning)
    if not games and not may_be_empty:
        raise nothing_to_learn(what, len(episodes))
    weights = {str(game.role): game.weight for game in games if game.role is not None}
    run.metrics.record("samples", what=what, decided=len(games), **{f"{role}_weight": w for role, w in weights.items()})
    return games


def nothing_to_learn(what: str, num_games: int) -> InputError:
    return InputError(
        f"{what}: none of {num_games} games was won by either side, so there is nothing to learn; "
        "play more games, or begin with imitation.enabled: true"
    )
