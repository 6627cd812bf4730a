"""Every metric that a run exports: its name, unit and labels, and which line of metrics.jsonl feeds it.

>>> from spag_ray.results.lines import EngineLostLine
>>> [(update.metric.name, update.labels, update.value) for update in updates(EngineLostLine("engine-0"))]
[('spag_ray_engines_lost_total', {}, 1.0)]

Names follow Prometheus: base units, and counters end in `_total`. Ray adds the prefix `ray_`. Every series also has the
label `run`. cluster/tracking/recorder.py passes the updates to Ray, cluster/tracking/grafana.py draws the metrics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spag_ray.game.rules import GAME_ENDS
from spag_ray.results.lines import Line
from spag_ray.stages import Stage

Kind = Literal["counter", "gauge", "histogram"]
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Metric:
    """`line`: the kind of line that feeds the metric. `value`: a pattern for the names of the values to take from it;
    its named groups become labels. Without a pattern each line counts 1. `is_sum`: the lines hold a running sum, and
    its increase is counted. `at_start`: label sets that exist from the start, at 0, for every game if `game` is a
    label; `guessing_at_start`: more of them, in a game of guesses."""

    kind: Kind
    name: str
    unit: str
    help: str
    line: str
    value: str = ""
    labels: tuple[str, ...] = ()
    is_sum: bool = False
    buckets: tuple[float, ...] = ()
    at_start: tuple[Labels, ...] = ()
    guessing_at_start: tuple[Labels, ...] = ()

    @property
    def exported_name(self) -> str:
        return f"ray_{self.name}"


@dataclass(frozen=True)
class Update:
    """An update of one series: the increase of a counter (or its running sum), a gauge's value, or an observation."""

    metric: Metric
    labels: dict[str, str]
    value: float


def updates(line: Line) -> list[Update]:
    """The updates that a line of metrics.jsonl causes. Values that are not finite are ignored."""
    found: list[Update] = []
    values = line.values()
    for metric in METRICS:
        if metric.line == line.kind:
            for caught, value in _values(metric, values):
                if isinstance(value, int | float) and math.isfinite(value):
                    labels = {label: caught.get(label) or _label(label, values) for label in metric.labels}
                    found.append(Update(metric, labels, float(value)))
    return found


def _values(metric: Metric, values: Mapping[str, Any]) -> list[tuple[dict[str, str], Any]]:
    if not metric.value:
        return [({}, 1)]
    matches = {name: re.fullmatch(metric.value, name) for name in values}
    return [(match.groupdict(), values[name]) for name, match in matches.items() if match is not None]


def _label(label: str, values: Mapping[str, Any]) -> str:
    if label == "phase" and "stage" in values:
        return Stage.parse(values["stage"]).phase
    if label == "part":
        return re.split(r"[-.]", values["what"])[0]  # engine-policy-0.2 is an engine
    return str(values[label])


_PLAYED = [{"phase": phase} for phase in ("imitation", "self_play", "evaluation")]
_PARTS = ("engine", "arena", "buffer", "learners", "evaluation")
_STATES = ("starting", "behind", "playing", "draining", "asleep", "lost", "retired")  # cluster/fleet/roster.py
_CAUSES = ("crash", "stuck", "out of memory")

_ENDING = r"(?P<seat>attacker|defender|none) (?P<result>win|breach|tie): (?P<reason>.+)"
_SEAT = r"(?P<seat>\w+)"
_ONCE: tuple[Labels, ...] = ({},)
_IN_PHASE: dict[str, Any] = {"labels": ("phase", "game"), "is_sum": True, "at_start": tuple(_PLAYED)}
_POLICY = ("policy",)
_LEARNS = ("policy", "phase")
_SHORT_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_LONG_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


def _counter(name: str, unit: str, help: str, line: str, value: str = "", **more: Any) -> Metric:
    return Metric("counter", f"spag_ray_{name}", unit, help, line, value, **more)


def _of_stream(name: str, unit: str, help: str, value: str) -> Metric:
    return _counter(name, unit, help, "buffer", value, is_sum=True)


def _gauge(name: str, unit: str, help: str, line: str, value: str, labels: tuple[str, ...] = (), **more: Any) -> Metric:
    return Metric("gauge", f"spag_ray_{name}", unit, help, line, value, labels=labels, **more)


def _of_step(name: str, unit: str, help: str, value: str) -> Metric:
    return _gauge(name, unit, help, "step", value, _POLICY)


def _of_steps(name: str, unit: str, help: str, value: str) -> Metric:
    return _counter(name, unit, help, "step", value, labels=_LEARNS)


def _of_sync(name: str, unit: str, help: str, value: str) -> Metric:
    return _gauge(name, unit, help, "sync", value, _POLICY)


def _held_out(name: str, unit: str, help: str, value: str) -> Metric:
    return _gauge(name, unit, f"held-out games: {help}", "held_out", value, ("stage", "game"))


def _of_games(name: str, unit: str, help: str, value: str, labels: tuple[str, ...] = ()) -> tuple[Metric, Metric]:
    """A figure of the games of a stage, and of those of a version of a stream."""
    return (
        _gauge(f"play_{name}", unit, help, "play", value, ("phase", "game", *labels)),
        _gauge(f"stream_{name}", unit, "the same, of a stream's newest version", "stream", value, labels),
    )


def _of_engine(name: str, unit: str, help: str, value: str) -> Metric:
    return _gauge(f"engine_{name}", unit, help, "engine", value, ("phase", "engine"))


def _seconds(name: str, help: str, line: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Metric:
    return Metric("histogram", f"spag_ray_{name}", "seconds", help, line, "seconds", labels=labels, buckets=buckets)


METRICS: tuple[Metric, ...] = (
    # play, as the buffer counts it
    _counter(
        "games_total",
        "games",
        "finished games; `seat` won or broke the rules, `reason` is why",
        "games",
        _ENDING,
        labels=("phase", "game", "seat", "result", "reason"),
        is_sum=True,
        guessing_at_start=tuple({**phase, **end.labels} for phase in _PLAYED for end in GAME_ENDS),
    ),
    _counter("turns_total", "turns", "turns played in finished games", "games", "turns", **_IN_PHASE),
    _counter("tokens_total", "tokens", "tokens sampled in finished games", "games", "tokens", **_IN_PHASE),
    _gauge(
        "play_gpu_tokens_per_second",
        "tokens/s",
        "tokens sampled in the newest stage, per GPU of the engines; not on CPUs",
        "play",
        "tokens_per_s_per_gpu",
        ("phase", "game"),
    ),
    _gauge(
        "stream_gpu_tokens_per_second",
        "tokens/s",
        "tokens sampled in a stream since it started or was resumed, per GPU of the engines; not on CPUs",
        "stream",
        "tokens_per_s_per_gpu",
    ),
    *_of_games(
        "reward_mean", "", "what games of the newest stage paid a seat, mean", f"reward_mean/{_SEAT}", ("seat",)
    ),
    *_of_games("reward_std", "", "its standard deviation", f"reward_std/{_SEAT}", ("seat",)),
    *_of_games("win_ratio", "ratio", "share of games that a seat won", f"win_share/{_SEAT}", ("seat",)),
    *_of_games("tie_ratio", "ratio", "share of games that were tied", "tie_share"),
    *_of_games("breach_ratio", "ratio", "share of games that a broken rule ended", "breach_share"),
    *_of_games("reply_mean_tokens", "tokens", "sampled tokens of a turn, mean", "reply_tokens_mean"),
    *_of_games("reply_max_tokens", "tokens", "those of the longest one", "reply_tokens_max"),
    *_of_games("truncated_ratio", "ratio", "share of turns that were cut off", "truncated_share"),
    _gauge("groups_dropped", "groups", "groups of the newest round that all agree", "groups", "dropped"),
    _gauge("groups_refilled", "groups", "groups played to replace them", "groups", "refilled"),
    *_of_games("early_guesses", "guesses", "wrong guesses of a game that did not end it, mean", "early_guesses_mean"),
    *_of_games("listener_ratio", "ratio", "the fact's probability to the listener after the last hint", "listener_p"),
    *_of_games("gain_ratio", "ratio", "what a hint added to that probability, mean", "gain_mean"),
    *_of_games("unscored_games", "games", "games that the listener did not score", "num_unscored"),
    # the buffer
    _gauge("buffer_episodes", "episodes", "episodes that wait for the learner", "buffer", "waiting"),
    _gauge("buffer_age_seconds", "seconds", "age of the oldest waiting episode", "buffer", "oldest_s"),
    _gauge("permits", "games", "games of a stream that may start now", "buffer", "permits_free"),
    _of_stream("stream_games_begun_total", "games", "games of a stream given to arenas", "begun"),
    _of_stream("stream_games_lost_total", "games", "games of a stream lost with their arena", "lost"),
    _of_stream("episodes_repeated_total", "episodes", "episodes received twice and kept once", "repeated"),
    _of_stream("episodes_evicted_total", "episodes", "episodes too old to train on", "evicted"),
    _counter(
        "episodes_learned_total",
        "episodes",
        "episodes of a stream given to the learner; `lag` is how many versions old they were",
        "buffer",
        r"lag_(?P<lag>\d+)",
        labels=("lag",),
        is_sum=True,
    ),
    _counter(
        "learner_wait_seconds_total",
        "seconds",
        "time the learner waited for games of a stream",
        "stream",
        "waited_s",
        at_start=_ONCE,
    ),
    _gauge("staleness_mean_versions", "versions", "age of a version's games, mean", "stream", "staleness_mean"),
    _gauge("staleness_max_versions", "versions", "age of the oldest of them", "stream", "staleness_max"),
    # iterations
    _gauge("iteration_seconds", "seconds", "newest round, or version of a stream", "iteration", "seconds"),
    _gauge(
        "iteration_activity_seconds",
        "seconds",
        "its parts; generate to checkpoint do not overlap, the idle times are beside them",
        "iteration",
        r"(?P<activity>\w+)_s",
        ("activity",),
    ),
    _gauge("optimiser_steps", "steps", "optimiser steps so far, of the policy with the most", "iteration", "step"),
    # the engines
    _of_engine("busy_ratio", "ratio", "share of a stage's time with a turn to answer", "busy_share"),
    _of_engine("kv_cache_mean_ratio", "ratio", "share of vLLM's KV cache in use, mean of its steps", "kv_cache_mean"),
    _of_engine("kv_cache_max_ratio", "ratio", "the most in use", "kv_cache_max"),
    _counter(
        "engine_preemptions_total",
        "requests",
        "requests that lost their place in vLLM's KV cache and are computed again",
        "engine",
        "preemptions",
        labels=("phase", "engine"),
    ),
    _of_engine("prefix_hit_ratio", "ratio", "share of prompt tokens that vLLM had cached", "prefix_hit_share"),
    _of_engine("running_mean_requests", "requests", "requests in a step of vLLM, mean", "running_mean"),
    _of_engine("running_max_requests", "requests", "the most", "running_max"),
    _of_engine("waiting_max_requests", "requests", "the most that waited for room", "waiting_max"),
    _of_engine("gpu_memory_bytes", "bytes", "in use on the engine's GPUs, by whomever, the most", "gpu_memory_bytes"),
    _of_engine("gpu_busy_ratio", "ratio", "share of time in which its GPUs computed, as NVML sees it", "gpu_share"),
    # the learner
    _counter("learner_steps_total", "steps", "optimiser steps", "step", labels=_LEARNS),
    _of_steps("learner_skipped_steps_total", "steps", "steps without a finite gradient", "skipped"),
    _seconds("learner_step_seconds", "time of one step", "step", _LEARNS, _LONG_S),
    _of_steps(
        "learner_compute_seconds_total", "seconds", "time in forward and backward on the busiest rank", "compute_s"
    ),
    _of_steps(
        "learner_target_tokens_total", "tokens", "tokens trained on: turns, words heard, SFT rows", "num_target_tokens"
    ),
    _of_steps(
        "learner_computed_tokens_total",
        "tokens",
        "tokens computed for training; shared prefixes count once",
        "num_unique_tokens",
    ),
    _of_step("learner_tokens_per_second", "tokens/s", "computed tokens", "tokens_per_s"),
    _of_step(
        "learner_gpu_tokens_per_second",
        "tokens/s",
        "computed tokens, per GPU of the learner; not on CPUs",
        "tokens_per_s_per_gpu",
    ),
    _of_step(
        "learner_mfu_ratio",
        "ratio",
        "model FLOPs utilisation: share of the GPUs' measured bfloat16 matrix rate; not on CPUs",
        "mfu",
    ),
    _of_step(
        "learner_gpu_memory_bytes",
        "bytes",
        "the most that PyTorch has held on one of the learner's GPUs; not on CPUs",
        "gpu_memory_bytes",
    ),
    _of_step("loss", "", "total loss of the newest step", "loss"),
    _of_step("policy_loss", "", "weighted policy term of the loss", "policy_loss"),
    _of_step("kl_loss", "", "weighted KL term of the loss", "kl_loss"),
    _of_step("sft_loss", "", "weighted SFT term of the loss", "sft_loss"),
    _of_step("listening_loss", "", "weighted listening term of the loss", "listening_loss"),
    _of_step("claiming_loss", "", "weighted claiming term of the loss", "claiming_loss"),
    _of_step("unsaid_loss", "", "weighted unsaid-words term of the loss", "unsaid_loss"),
    _of_step("entropy_bonus_loss", "", "weighted entropy bonus of the loss", "entropy_bonus_loss"),
    _of_step("listening_nats", "nats", "surprisal of the word, per token", "listening_nats"),
    _of_step("listened_games", "games", "games whose word was listened for in the newest step", "num_listened"),
    _of_step("advantage_mean", "", "advantage of a trained turn, mean", "advantage_mean"),
    _of_step("advantage_std", "", "its standard deviation", "advantage_std"),
    _of_step("advantage_zeros_ratio", "ratio", "turns whose advantage is 0", "advantage_zeros"),
    _of_step("turn_mean_tokens", "tokens", "length of a trained turn, mean", "turn_tokens_mean"),
    _of_step("turn_max_tokens", "tokens", "length of the longest one", "turn_tokens_max"),
    _of_step("approx_kl_nats", "nats", "moved since the games were taken", "approx_kl"),
    _of_step("kl_nats", "nats", "divergence from the reference, per token", "kl"),
    _of_step("entropy_nats", "nats", "entropy per target token", "entropy"),
    _of_step("gradient_norm", "", "norm of the gradient before clipping", "gradient_norm"),
    _of_step("learning_rate", "", "learning rate of the newest step", "learning_rate"),
    _of_step("clipped_ratio", "ratio", "share of tokens that were clipped", "clip_fraction"),
    _of_step("clipped_low_ratio", "ratio", "clipped at the lower end", "clip_fraction_low"),
    _of_step("clipped_high_ratio", "ratio", "clipped at the upper end", "clip_fraction_high"),
    _of_step("importance_mean_ratio", "ratio", "importance ratio, mean", "ratio_mean"),
    _of_step("importance_max_ratio", "ratio", "importance ratio, largest", "ratio_max"),
    _gauge("role_weight", "", "weight of a role's games", "step", r"(?P<seat>\w+)_weight", ("policy", "seat")),
    # engine against learner
    _of_step("mismatch_ratio", "ratio", "a token's probability, learner divided by engine", "mismatch_mean"),
    _of_step("mismatch_capped_ratio", "ratio", "weights at their cap", "mismatch_capped"),
    _of_step("mismatch_mean_nats", "nats", "learner against engine: mean gap", "gap_mean"),
    _of_step("mismatch_max_nats", "nats", "learner against engine: largest gap", "gap_max"),
    _of_step("mismatch_k3_nats", "nats", "divergence of learner and engine (k3)", "gap_k3"),
    _of_sync("probe_mean_nats", "nats", "the probe after a sync: mean gap", "probe_gap_mean"),
    _of_sync("probe_max_nats", "nats", "the probe after a sync: largest gap", "probe_gap_max"),
    # weights
    _of_sync("policy_version", "versions", "newest version on the engines", "version"),
    _of_sync("sync_engines", "engines", "engines that loaded it", "num_engines"),
    _seconds("sync_seconds", "time from publishing a version until every engine has it", "sync", _POLICY, _SHORT_S),
    _counter("sync_bytes_total", "bytes", "weights sent to each engine", "sync", "num_bytes", labels=_POLICY),
    _counter(
        "sync_broken_channels_total",
        "versions",
        "versions sent through the object store because engines were lost in a broadcast",
        "sync",
        "broken_channels",
        labels=_POLICY,
    ),
    # tasks of lm-evaluation-harness
    _gauge("task_score", "", "newest stage's score in a task", "evaluation", "value", ("policy", "task", "metric")),
    # games on held-out words
    _held_out("right_guess_ratio", "ratio", "share of guesses that were right", "right_share"),
    _held_out(
        "trap_ratio",
        "ratio",
        "share of attacker wins in which the defender said the word without noticing",
        "trap_share",
    ),
    _held_out(
        "could_have_known_ratio", "ratio", "the word's mean probability at the defender's last turn", "could_have_known"
    ),
    _held_out("could_have_known_nats", "nats", "mean logarithm of that probability", "could_have_known_nats"),
    _gauge("elo", "", "how much better the newest stage is than the first, on Elo's scale", "elo", "elo", ("game",)),
    _gauge("elo_of_seat", "", "the same, in a seat", "elo", f"elo/{_SEAT}", ("game", "seat")),
    # solved games
    _gauge(
        "exploitability",
        "",
        "a solved game's figures of the newest stage, such as nash_conv",
        "exploitability",
        "exact (?P<figure>.+)",
        ("game", "figure"),
    ),
    # collapse
    _counter(
        "collapse_alarms_total",
        "alarms",
        "figures that were outside an earlier stage's interval for two stages",
        "collapse",
        "is_alarm",
        labels=("figure",),
        at_start=tuple({"figure": figure} for figure in ("ties", "breaches")),
        guessing_at_start=({"figure": "right guesses"},),
    ),
    _gauge(
        "mix_ratio",
        "ratio",
        "share of the next round's games against frozen opponents",
        "collapse",
        "mix_ratio",
        at_start=_ONCE,
    ),
    # failures and checkpoints
    _counter(
        "restarts_total",
        "restarts",
        "parts of the run that were restarted, by cause",
        "restart",
        labels=("part", "cause"),
        at_start=tuple({"part": part, "cause": cause} for part in _PARTS for cause in _CAUSES),
    ),
    _counter("engines_joined_total", "engines", "engines that joined", "engine_joined", at_start=_ONCE),
    _counter(
        "engine_changes_total",
        "changes",
        "changes of engines' states, by the state that they changed to",
        "engine_state",
        labels=("state",),
        at_start=tuple({"state": state} for state in _STATES),
    ),
    _counter(
        "engines_lost_total",
        "engines",
        "engines that died, hung or were stopped for a fault",
        "engine_lost",
        at_start=_ONCE,
    ),
    _counter(
        "engines_left_total",
        "engines",
        "engines that left: fewer are needed, or a node is drained",
        "engine_left",
        at_start=_ONCE,
    ),
    _counter("resumes_total", "resumes", "resumes from a checkpoint", "resumed", at_start=_ONCE),
    _counter("log_damage_total", "faults", "episode logs found damaged", "log_damage", at_start=_ONCE),
    _counter("logs_set_aside_total", "logs", "episode logs set aside", "set_aside", at_start=_ONCE),
    _seconds("checkpoint_seconds", "time to save a checkpoint", "checkpoint", (), _LONG_S),
    _gauge("checkpoint_bytes", "bytes", "size of the newest checkpoint", "checkpoint", "num_bytes"),
)
