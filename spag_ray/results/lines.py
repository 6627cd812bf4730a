"""The lines of metrics.jsonl, one type for each kind, for writers and readers.

>>> line = BufferLine(waiting=3, oldest_s=1.5, permits_free=8, lags={0: 4, 1: 2})
>>> line.values()
{'waiting': 3, 'oldest_s': 1.5, 'permits_free': 8, 'lag_0': 4, 'lag_1': 2}
>>> parse_line({"time": 9.0, "kind": "buffer", **line.values()}) == line
True

A field with a default may be missing: an older version did not write it, or it had no value. None is not written. A
number that is not finite is null in the file and nan here. line_codec.py turns lines into JSON and back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from spag_ray.game.rules import GAME_ENDS, Outcome, Role
from spag_ray.results.evaluations import Evaluation
from spag_ray.results.line_codec import parsed, spread, written

NOT_SAID = math.nan
# {"attacker win": "attacker wins", ...}: the ends of games by seat and result.
OUTCOME_OF_END = {f"{end.seat} {end.result}": end.outcome for end in GAME_ENDS}


@dataclass(frozen=True)
class Line:
    """`unknown`: values of fields that this version does not know, from another version of spag_ray."""

    kind: ClassVar[str]
    unknown: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def values(self) -> dict[str, Any]:
        """The values in the form and order of the file, after `time` and `kind`."""
        return written(self) | dict(self.unknown)


@dataclass(frozen=True)
class StepReport:
    """One optimiser step, over all ranks. Losses include their coefficients; means are over trained turns.

    `listening_nats`: minus the log-probability of the words of `num_listened` games, per token. It, `num_listened` and
    `listening_loss` are None without listening. `claiming_loss`, `unsaid_loss` and `entropy_bonus_loss` are None if
    their coefficients are 0. `ratio`: exp(theta - old). `gap`: |old - mu|, learner against engine, over the turns that
    an engine sampled; `gap_k3` is the k3 estimate of their divergence. `mismatch`: exp(old - mu). `entropy`: nats per
    target token. `approx_kl`: old - theta. `clip_fraction_low`, `_high`: the tokens at each clip. `mismatch_capped`:
    those whose weight is capped. `advantage_zeros`: the share of turns whose advantage is 0. What does not apply is
    None: in imitation all of these, with the published loss all but advantages. `gradient_norm` is before clipping.
    `compute_s`: the part of `seconds` in forward and backward on the busiest rank. `tokens_per_s`: of
    `num_unique_tokens`. `mfu`: model FLOPs utilisation, the share of the GPUs' measured bfloat16 matrix rate
    (learners/utilization.py). `gpu_memory_bytes`: the most that PyTorch has held on a GPU, of the rank with the most.
    These and `tokens_per_s_per_gpu` are None on CPUs.
    `skipped`: the loss or the gradient was not finite, and the weights were not changed.
    """

    step: int
    loss: float = NOT_SAID
    policy_loss: float = NOT_SAID
    kl_loss: float = NOT_SAID
    sft_loss: float = NOT_SAID
    listening_loss: float | None = None
    listening_nats: float | None = None
    num_listened: int | None = None
    claiming_loss: float | None = None
    unsaid_loss: float | None = None
    entropy_bonus_loss: float | None = None
    gradient_norm: float = NOT_SAID
    learning_rate: float = NOT_SAID
    advantage_mean: float | None = None
    advantage_std: float | None = None
    advantage_zeros: float | None = None
    turn_tokens_mean: float | None = None
    turn_tokens_max: int | None = None
    kl: float | None = None
    approx_kl: float | None = None
    clip_fraction: float | None = None
    clip_fraction_low: float | None = None
    clip_fraction_high: float | None = None
    ratio_mean: float | None = None
    ratio_max: float | None = None
    mismatch_mean: float | None = None
    mismatch_capped: float | None = None
    gap_mean: float | None = None
    gap_max: float | None = None
    gap_k3: float | None = None
    entropy: float = NOT_SAID
    attacker_weight: float = NOT_SAID
    defender_weight: float = NOT_SAID
    num_target_tokens: int = 0
    num_unique_tokens: int = 0
    num_flat_tokens: int = 0
    unique_share: float = NOT_SAID
    tokens_per_s: float = NOT_SAID
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    gpu_memory_bytes: int | None = None
    seconds: float = NOT_SAID
    compute_s: float = NOT_SAID
    skipped: bool = False


@dataclass(frozen=True)
class StepLine(Line):
    kind = "step"
    stage: str
    policy: str
    report: StepReport


@dataclass(frozen=True)
class SyncReport:
    """One published version. `seconds`: from the call until every engine has the version. `num_bytes`: bytes sent to
    each engine. `probe_gap_mean` and `probe_gap_max`: the mean and the largest difference of the probe's
    log-probabilities, in nats, for the engine that is furthest from the learner; 0 without a probe. `broken_channels`:
    1 if engines were lost during a broadcast and this version was sent through the object store, else 0; None in files
    of version 0.1."""

    version: int
    seconds: float
    num_engines: int = 0
    num_bytes: int = 0
    probe_gap_mean: float = 0.0
    probe_gap_max: float = 0.0
    probe_seconds: float = 0.0
    broken_channels: int | None = None


@dataclass(frozen=True)
class SyncLine(Line):
    kind = "sync"
    policy: str
    report: SyncReport


@dataclass(frozen=True)
class GameFigures:
    """Of the games of a line. `reward_mean`, `reward_std`: {role: what games paid it}, over the games that paid it.
    `win_share`: {role: share of games that it won}. `breach_share`: of games that a broken rule ended.
    `reply_tokens_mean`, `_max`: sampled tokens of a turn. `truncated_share`: of turns that sampling.max_new_tokens cut
    off; both None for games that no engine played. `early_guesses_mean`: wrong guesses of a game that did not end it;
    None unless game.max_guesses allows them. `listener_p`: what the listener of objective.information_gain gave the
    fact after a game's last hint, mean; `gain_mean`: what a hint added to it; `num_unscored`: games that it did not
    score; None without a listener. All are missing in files of version 0.1 and early 0.2."""

    reward_mean: Mapping[str, float] = spread("reward_mean/{}", Role)
    reward_std: Mapping[str, float] = spread("reward_std/{}", Role)
    win_share: Mapping[str, float] = spread("win_share/{}", Role)
    tie_share: float | None = None
    breach_share: float | None = None
    reply_tokens_mean: float | None = None
    reply_tokens_max: int | None = None
    truncated_share: float | None = None
    early_guesses_mean: float | None = None
    listener_p: float | None = None
    gain_mean: float | None = None
    num_unscored: int | None = None


@dataclass(frozen=True)
class PlayLine(Line):
    """The games of a `game` in a stage that was played; `outcomes`: {outcome: games}. `seconds`: of the stage. After a
    resume, `seconds` and the rates are of the games that this attempt played.
    `tokens_per_s_per_gpu`: of what engines sampled, over the GPUs of all engines; None on CPUs, and for games that no
    engine played."""

    kind = "play"
    stage: str
    game: str
    version: int
    games: int
    turns: int
    tokens: int
    seconds: float
    games_per_s: float
    tokens_per_s: float
    outcomes: Mapping[str, int] = spread("{}", Outcome)
    tokens_per_s_per_gpu: float | None = None
    figures: GameFigures = GameFigures()


@dataclass(frozen=True)
class GamesLine(Line):
    """Sums of a `game` in a phase since the buffer's process started; `ends`: {GameEnd: games}. A game's own reasons
    may follow the known seats and results."""

    kind = "games"
    phase: str
    game: str
    turns: int
    tokens: int
    ends: Mapping[str, int] = spread("{}", OUTCOME_OF_END, rest=": .+")

    def continues(self, before: GamesLine) -> bool:
        """Whether the same process has written `before`, of this phase and game: a new one's sums start at 0."""
        is_more = self.turns >= before.turns and self.tokens >= before.tokens
        return is_more and all(self.ends.get(end, 0) >= games for end, games in before.ends.items())


@dataclass(frozen=True)
class BufferLine(Line):
    """The buffer now: episodes that wait. The other fields are those of a stream; counts are sums since it
    started. `lags`: {versions behind: episodes that were trained on}."""

    kind = "buffer"
    waiting: int
    oldest_s: float
    permits_free: int | None = None
    begun: int | None = None
    lost: int | None = None
    repeated: int | None = None
    evicted: int | None = None
    lags: Mapping[int, int] = spread("lag_{}")


@dataclass(frozen=True)
class StreamLine(Line):
    """The games of a version have arrived; the learner waited `waited_s` for them. `figures`: of these games.
    `staleness_mean`, `_max`: how many versions old they were. The other fields are as in BufferLine and PlayLine."""

    kind = "stream"
    version: int
    waited_s: float
    games: int
    tokens_per_s: float
    games_per_s: float
    begun: int
    waiting: int
    evicted: int
    lost: int
    repeated: int
    permits_free: int
    lags: Mapping[int, int] = spread("lag_{}")
    tokens_per_s_per_gpu: float | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    figures: GameFigures = GameFigures()


Phase = Literal["generate", "score", "train", "sync", "evaluate", "checkpoint"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class IterationLine(Line):
    """A round, or a version of a stream; after a resume, of this attempt's part. `step`: optimiser steps so far, of the
    policy with the most. The loop waited `generate_s` for games, `score_s` for log-probabilities that training compares
    with, `train_s` for steps, `sync_s` for weights to reach the engines, and for devices to change hands, `evaluate_s`
    for matches and tasks, `checkpoint_s` for checkpoints and saved models. These do not overlap; what did not occur
    took 0. Beside them: `learner_idle_s`, in which the learner had nothing to do, and `engines_idle_s`, in which an
    engine had no turn to answer, the mean over engines."""

    kind = "iteration"
    stage: str
    version: int
    step: int
    seconds: float
    generate_s: float = 0.0
    score_s: float = 0.0
    train_s: float = 0.0
    sync_s: float = 0.0
    evaluate_s: float = 0.0
    checkpoint_s: float = 0.0
    engines_idle_s: float | None = None
    learner_idle_s: float | None = None

    @property
    def parts(self) -> dict[Phase, float]:
        """{phase: seconds that the loop waited for it}"""
        return {phase: getattr(self, f"{phase}_s") for phase in PHASES}


@dataclass(frozen=True)
class EngineFigures:
    """What an engine measured in `seconds`. `busy_share`: of the time, with a turn to answer. The others are vLLM's,
    while it computed: `kv_cache_mean`, `_max`: share of its KV cache in use; `preemptions`: requests that lost their
    place in it; `prefix_hit_share`: of prompt tokens, those that were cached; `running_mean`, `_max`, `waiting_max`:
    requests. `gpu_memory_bytes`: in use on its GPUs, by whomever, the most; `gpu_share`: of the time, in which they
    computed; both None on CPUs."""

    seconds: float | None = None
    busy_share: float | None = None
    kv_cache_mean: float | None = None
    kv_cache_max: float | None = None
    preemptions: int | None = None
    prefix_hit_share: float | None = None
    running_mean: float | None = None
    running_max: int | None = None
    waiting_max: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_share: float | None = None


@dataclass(frozen=True)
class EngineLine(Line):
    """An engine in a stage, or in a version of a stream."""

    kind = "engine"
    stage: str
    engine: str
    version: int
    figures: EngineFigures


@dataclass(frozen=True)
class SamplesLine(Line):
    """The training samples of a stage's games of a `game`. `decided`: games that give samples. `weights`: {role: weight
    of the games that it won}."""

    kind = "samples"
    what: str
    game: str
    decided: int
    weights: Mapping[str, float] = spread("{}_weight")


@dataclass(frozen=True)
class GroupsLine(Line):
    """Groups of games about one word in a round that replaces those that agree (self_play.refill_agreeing): how many
    are left out because all of a group paid the same, and how many were played to replace them."""

    kind = "groups"
    stage: str
    dropped: int
    refilled: int


@dataclass(frozen=True)
class EvaluationLine(Line):
    kind = "evaluation"
    policy: str
    row: Evaluation


@dataclass(frozen=True)
class EloLine(Line):
    """How much better a stage plays a `game` than the earliest stage that it can be compared with (`against`), on Elo's
    scale: `seats`, and `elo`, their mean. From all matches so far."""

    kind = "elo"
    stage: str
    game: str
    version: int
    against: str
    elo: float
    seats: Mapping[str, float] = spread("elo/{}", Role)


@dataclass(frozen=True)
class HeldOutReport:
    """Games on held-out words, of a stage or a match. `traps`: attacker wins in which the defender said the word
    without noticing. `could_have_known`: the word's mean probability at the defender's last turn over `scored_games`;
    `could_have_known_nats` its mean logarithm. Shares and means are missing if there is nothing to count."""

    games: int
    guesses: int
    right_guesses: int
    attacker_wins: int
    traps: int
    right_share: float | None = None
    trap_share: float | None = None
    scored_games: int = 0
    could_have_known: float | None = None
    could_have_known_nats: float | None = None


@dataclass(frozen=True)
class HeldOutLine(Line):
    kind = "held_out"
    stage: str
    game: str
    version: int
    report: HeldOutReport


@dataclass(frozen=True)
class ExploitabilityLine(Line):
    """A stage's weights in a game that is solved. `probabilities`: {"number of the decision/reply": p} (Solved in
    spag_ray/game/protocol.py); `figures`: what the game computes from them."""

    kind = "exploitability"
    stage: str
    game: str
    version: int
    probabilities: Mapping[str, float] = spread("p {}")
    figures: Mapping[str, float] = spread("exact {}")

    def __str__(self) -> str:
        return f"{self.stage}: " + ", ".join(f"{name} {value:.3f}" for name, value in self.figures.items())


@dataclass(frozen=True)
class CollapseLine(Line):
    """With `is_alarm`: for the second stage, `figure` is outside `low` to `high`, what it may be by chance after stage
    `before`. Without: it is inside again. `action`: self_play.on_collapse. `mix_ratio`: share of the next round's games
    that are played against frozen opponents."""

    kind = "collapse"
    stage: str
    figure: str
    is_alarm: bool
    value: float
    low: float
    high: float
    before: str
    action: str
    mix_ratio: float = 0.0

    def __str__(self) -> str:
        interval = f"{self.low:.2f} to {self.high:.2f}, which chance allows after {self.before}"
        where = f"the second stage outside {interval}" if self.is_alarm else f"inside {interval}, again"
        return f"{self.stage}: {self.figure} {self.value:.2f}, {where}"


@dataclass(frozen=True)
class OpponentLine(Line):
    """A place in the league, and the version that plays there from now on."""

    kind = "opponent"
    place: str
    version: int


@dataclass(frozen=True)
class ReferenceLine(Line):
    """Where the reference of the KL term came from: in a resumed stream the weights of its stage's start, and each time
    that a reference moved (objective.kl_reference_every, .kl_reference_average) a stage's model, or `average`."""

    kind = "reference"
    policy: str
    stage: str
    saved: str
    is_exact: bool


@dataclass(frozen=True)
class CheckpointLine(Line):
    kind = "checkpoint"
    name: str
    stage: str
    seconds: float
    num_bytes: int


@dataclass(frozen=True)
class ResumedLine(Line):
    kind = "resumed"
    stage: str
    checkpoint: str
    version: int


@dataclass(frozen=True)
class SetAsideLine(Line):
    """The log of games of a stage that were played after the checkpoint, set aside on resume."""

    kind = "set_aside"
    log: str


@dataclass(frozen=True)
class RestartLine(Line):
    kind = "restart"
    what: str
    cause: str
    reason: str = "found dead"


@dataclass(frozen=True)
class EngineStateLine(Line):
    """An engine's state changed (cluster/fleet/roster.py). `before`: its former state, empty for a new engine,
    in which it was for `seconds`."""

    kind = "engine_state"
    engine: str
    policy: str
    state: str
    before: str
    seconds: float
    reason: str


@dataclass(frozen=True)
class EngineJoinedLine(Line):
    kind = "engine_joined"
    engine: str
    policy: str
    version: int


@dataclass(frozen=True)
class EngineLostLine(Line):
    kind = "engine_lost"
    engine: str
    policy: str = ""
    reason: str = "found dead"


@dataclass(frozen=True)
class EngineLeftLine(Line):
    kind = "engine_left"
    engine: str
    policy: str = ""
    reason: str = "on request"


@dataclass(frozen=True)
class LogDamageLine(Line):
    kind = "log_damage"
    stage: str
    damage: str


OF_GAMES = (PlayLine, GamesLine, SamplesLine, EloLine, HeldOutLine, ExploitabilityLine)  # with `game`
LINES: dict[str, type[Line]] = {line.kind: line for line in Line.__subclasses__()}


def parse_line(line: Mapping[str, Any]) -> Line | None:
    """Parses a line of the file; None for a kind that this version does not write. Raises TypeError or ValueError for a
    line that does not fit its kind."""
    if (of_kind := LINES.get(line["kind"])) is None:
        return None
    values = {name: value for name, value in line.items() if name not in ("time", "kind")}
    found, unknown = parsed(of_kind, values)
    return of_kind(**found, unknown=unknown)
