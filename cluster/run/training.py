"""The whole of SPAG on one page.

    base model ──> evaluate                                                       on held-out words
        │
        v          expert games ──> winner's turns ──> learner ──> weights v1 ──> evaluate        imitation
        │
        └─> round n: self-play ──> judged episodes ──> buffer ──> winner's turns, shares, role weights
                        ^                                              │
                        └──── weights v(n+1), every engine <──── learner, one pass                evaluate

    at the end: the newest weights against the imitated model, in both seats.

Evaluation plays on held-out words: a stage against itself and the frozen opponents (evaluation.against). It detects a
collapse (self_play.on_collapse): then frozen opponents play in the following rounds, or the run stops.

Every stage ends with a checkpoint, before its model is saved and its weights are played: whatever fails then, the stage
is not lost. A run resumes from there (RunState says where), and saves a model that is missing; games played since then
are in the log and are not played again.

What waits for what: in schedule `rounds`, play waits until every engine has the weights of the previous round, and the
learner waits for the round's last game. In schedule `stream` a round is several versions long:

        ┌─ play, as far as permits go ──> judged episodes ──> buffer ──> games_per_version of them, none too old ─┐
        └─ weights, each engine when sync.update lets it <── learner, one pass <─────────────────────────────────┘

Play waits only for permits (cluster/buffer/stream.py), the learner only for a version's games. Nothing else blocks.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.learning.stage_samples import nothing_to_learn
from cluster.run.checkpoint import RoleAverages, RunState
from cluster.run.training_verbs import Trainer
from spag_ray.errors import LearnersLostError, StopRequestedError
from spag_ray.results.matches import Match
from spag_ray.stages import BASE, IMITATED, STREAM, Stage
from spag_ray.training_data.listened_turns import count_leading
from spag_ray.training_data.samples import Sample

MAX_UNDECIDED = 5  # versions of a stream in a row without a decided game


def train(run: Trainer) -> list[Match]:
    lost: LearnersLostError | None = None
    while True:
        try:
            if lost is None:
                run.start()
            else:
                run.recovery.restart_learners(lost)
            state = run.recovery.restore()
            run.save_missing(state)
            return go_on(run, state)
        except LearnersLostError as error:
            lost = error


def go_on(run: Trainer, state: RunState) -> list[Match]:
    """Train from `state` to the end."""
    config = run.config
    if not state.order:
        run.recovery.measure_checkpoint()
    if not state.stage:
        evaluate(run, state)
        if config.imitation.enabled:
            state = imitate(run, state)
    if state.stage:
        evaluate(run, state)

    averages = RoleAverages.saved_in(state, config)
    sft = run.samples.sft()
    run.start_league(state)
    if config.schedule == "stream" and state.rounds < config.self_play.rounds:
        state = stream_rounds(run, state, sft, averages)
    for number in range(state.rounds + 1, config.self_play.rounds + 1):
        with run.iteration(Stage.of_round(number)):
            state = spag_round(run, number, state, sft, averages)
            run.publish()
            run.new_version(state)
            run.evaluate(Stage.parse(state.stage))

    run.end_learning()
    if config.self_play.rounds and config.evaluation.games:
        run.match_with(IMITATED if config.imitation.enabled else BASE)
    return run.end()


def evaluate(run: Trainer, state: RunState) -> None:
    """Evaluate the stage that ended last, unless the run resumes later than at its end: then it was evaluated before,
    and the learners no longer have its weights."""
    stage = Stage.parse(state.stage) if state.stage else BASE
    if state.is_mid_round(run.config) or run.is_mid_stage():
        run.look_for_collapse(stage)
    else:
        run.evaluate(stage)


def imitate(run: Trainer, state: RunState) -> RunState:
    """Train on the winner's turns of a stronger player's games, or on rows of training data, and on SFT rows."""
    is_scripted = run.config.imitation.source == "scripted"
    run.learn(run.samples.imitation(run.play_expert() if is_scripted else None))
    state = run.recovery.checkpoint(str(IMITATED), replace(state, stage=str(IMITATED)))
    run.save(IMITATED)
    run.publish()
    return state


def spag_round(run: Trainer, number: int, state: RunState, sft: list[Sample], averages: RoleAverages) -> RunState:
    """Self-play with the newest weights, then one training pass over the decided games."""
    stage = Stage.of_round(number)
    episodes = run.self_play(stage)
    run.record_opponents(stage, episodes)
    run.learn(run.samples.self_play(stage, episodes, f"round {number}", sft, averages.baselines))
    state = run.recovery.checkpoint(str(stage), averages.added_to(replace(state, stage=str(stage), rounds=number)))
    run.save(stage)
    return state


def stream_rounds(run: Trainer, state: RunState, sft: list[Sample], averages: RoleAverages) -> RunState:
    """All rounds, while play continues: a new version of the weights for every `games_per_version` games."""
    config = run.config
    per_version = config.stream.games_per_version
    versions_per_round = config.versions_per_round
    num_parts = config.self_play.rounds * versions_per_round
    num_undecided = 0
    with run.streaming(state) as stream:
        for part in range(state.parts, num_parts):
            round_number, place = part // versions_per_round + 1, part % versions_per_round + 1
            stage = Stage.of_round(round_number)
            with run.iteration(stage):
                try:
                    what = f"{stage}, version {place} of {versions_per_round}: play"
                    episodes, repeated = stream.next_batch(stage, what)
                except StopRequestedError:  # the learner's weights are those of `state`
                    if run.recovery.time_to_save():
                        run.recovery.checkpoint(f"version-{part}", state)
                    raise
                run.record_opponents(stage, [episode for episode in episodes if episode.number not in repeated])
                learned = run.samples.self_play(
                    stage,
                    episodes,
                    str(stage),
                    sft=sft,
                    baselines=averages.baselines,
                    windows=averages.windows,
                    repeated=repeated,
                )
                num_undecided = 0 if learned.games else num_undecided + 1
                if num_undecided == MAX_UNDECIDED:
                    raise nothing_to_learn(f"{MAX_UNDECIDED} versions in a row", MAX_UNDECIDED * per_version)
                learned = replace(
                    learned,
                    batch_games=max(1, -(-count_leading(learned.games) // config.steps_per_version)),
                    spec=replace(
                        learned.spec, num_steps=num_parts * config.steps_per_version, name=str(STREAM), is_part=True
                    ),
                    part_steps=config.steps_per_version,
                    part=place - 1,
                    after=Stage.parse(state.stage) if state.stage else None,
                )
                run.learn(learned)
                run.publish()
                state = averages.added_to(replace(state, parts=part + 1, stream=stream.learned()))
                run.new_version(state, stream)
                if place == versions_per_round:
                    state = replace(state, stage=str(stage), rounds=round_number)
                if place == versions_per_round or run.checkpoint_is_due(part + 1):
                    state = run.recovery.checkpoint(f"version-{part + 1}", state)
                if place == versions_per_round:
                    run.save(stage)
                    run.evaluate(stage)
    return state
