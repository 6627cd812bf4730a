"""A run that ends anywhere, and resumes, comes to the same league, words, averages and weights as one that does not.

The loop, the checkpoints, the league and the words are real. A learner's weights are a digest of all that they were
trained on, and a game's result is a digest of its word and of its players' weights.
"""

import json
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.league import Opponents
from cluster.fleet.publisher import Publisher
from cluster.handles import SavedWeights
from cluster.learning.learning_policy import LearningPolicy
from cluster.learning.stage_samples import StageSamples
from cluster.run import checkpoint, training_verbs
from cluster.run.checkpoint import RunState
from cluster.run.parts import RunControl
from cluster.run.recovery import Recovery
from cluster.run.training import train
from cluster.run.training_verbs import Trainer
from cluster.schedules.league import LeaguePlay
from cluster.schedules.seating import Seating
from cluster.tracking.time_split import TimeSplit
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.errors import LearnersLostError
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import Turn
from spag_ray.game.words import Lease
from spag_ray.host import whole_files
from spag_ray.host.folder_lease import FolderLease
from spag_ray.stages import BASE, STREAM, Stage
from spag_ray.training_data.samples import GameSample
from spag_ray.training_data.stage_spec import StageSpec
from tests.support.streams import taboo_words

WORDS = ["river", "cat", "lamp", "stone", "bread"]
OUTCOMES = [Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS, Outcome.TIED]


class ProcessEnded(BaseException):
    """Nothing catches it: the process is gone."""


class Fate:
    """Counts the points where something may end, and ends it at one of them."""

    def __init__(self, at: int | None = None, error: type[BaseException] = ProcessEnded) -> None:
        self.num_points = 0
        self._at = at
        self._error = error

    def point(self) -> None:
        self.num_points += 1
        if self.num_points == self._at:
            raise self._error("here")


def digest(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()[:8]


class Learners:
    """`saves_reference`: whether it is in a checkpoint, because no saved model has it."""

    def __init__(self, fate: Fate, saves_reference: bool) -> None:
        self.weights, self.reference = "base", ""
        self._saves_reference = saves_reference
        self.spec = StageSpec("self_play", 1, 0.0, 0.0)
        self.is_awake = True
        self._fate = fate

    def wake(self) -> None:
        self.is_awake = True

    def sleep(self, keep_weights: bool) -> None:
        self.is_awake = False

    def check(self, turns: Sequence[object]) -> None:
        assert turns

    def begin_stage(self, spec: StageSpec) -> None:
        """Its settings are no part of the digest."""
        self.spec = spec

    continue_stage = begin_stage

    def close(self) -> None:
        self.weights = "closed"

    def keep_reference(self) -> None:
        self.reference = self.weights

    def move_reference(self, share: float) -> None:
        assert self.is_awake
        assert self.reference
        self.reference = digest(self.reference, self.weights, share)

    def load_reference(self, model: str) -> bool:
        assert self.is_awake
        file = Path(model) / "weights"
        self.reference = file.read_text() if file.exists() else "base"
        return True

    def score_games(self, games: list[GameSample], temperature: float) -> list[GameSample]:
        assert self.is_awake
        return _scored(games, old_logprobs=(score(self.weights),))

    def score_reference(self, games: list[GameSample], temperature: float) -> list[GameSample]:
        assert self.is_awake
        return _scored(games, ref_logprobs=(score(self.reference),))

    def step(self, games: list[GameSample], sft: object, at_start: bool) -> Any:
        assert self.is_awake
        self._fate.point()
        self.weights = digest(self.weights, [(game.episode_id, game.weight, game.turns) for game in games])
        return SimpleNamespace(loss=0.5, skipped=False)

    def save_model(self, folder: str, adapter_alone: bool) -> None:
        assert self.is_awake
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._fate.point()
        (Path(folder) / "weights").write_text(self.weights)
        self._fate.point()

    def save_state(self, folder: str) -> None:
        assert self.is_awake
        Path(folder).mkdir()
        self._fate.point()
        (Path(folder) / "spec").write_bytes(pickle.dumps(self.spec))
        (Path(folder) / "weights").write_text(self.weights)
        if self._saves_reference:
            (Path(folder) / "average").write_text(self.reference)

    def load_state(self, folder: str) -> StageSpec:
        assert self.is_awake
        self.weights = (Path(folder) / "weights").read_text()
        average = Path(folder) / "average"
        self.reference = average.read_text() if average.exists() else ""
        return pickle.loads((Path(folder) / "spec").read_bytes())


def score(weights: str) -> float:
    return 0.0 if weights == "base" else -int(weights, 16) / 2**32


def _scored(games: list[GameSample], **scores: Any) -> list[GameSample]:
    return [replace(game, turns=tuple(replace(turn, **scores) for turn in game.turns)) for game in games]


class Policy(LearningPolicy):
    """Its engines have `played`, the weights that were published last."""

    fate: Fate
    played = "base"
    publishes: list[tuple[int, str]]

    def start_learners(self) -> None:
        learners: Any = Learners(self.fate, self.config.objective.kl_reference_average is not None)
        self.learners = learners
        self.forget()

    def export(self) -> None:
        learners: Any = self.learners
        assert learners.is_awake
        self.fate.point()

    def publish(self, engines: object, gate: object) -> dict[Any, str]:
        assert self.learners is not None
        self.version, self.played = self.next_version, self.learners.weights  # type: ignore[attr-defined]
        self.publishes.append((self.version, self.played))
        self.fate.point()
        return {}

    def verify_weights(self, engines: object) -> dict[Any, str]:
        return {}


class Fleet:
    """The pools of past versions, and the folders that they were given. `drawn`: for which of the learner's weights."""

    def __init__(self, fate: Fate, policy: Policy, drawn: dict[tuple[str, str], Any]) -> None:
        self.given: dict[str, dict[str | None, tuple[str, int]]] = {}
        self.updating = threading.RLock()
        self.roster = SimpleNamespace(
            of_learner=lambda *_: [], lock=threading.RLock(), records=[], awake=threading.Event(), num_sleeps=0
        )
        self.roster.awake.set()
        self.tasks = SimpleNamespace(is_stopped=False)
        self._fate = fate
        self._policy = policy
        self._drawn = drawn

    def start(self, model: str, pool: str, *_: object, num_adapters: int = 0) -> None:
        self.given[pool] = {}

    def give(self, pool: str, saved: Mapping[str | None, tuple[str, int]]) -> None:
        self._fate.point()
        assert all((Path(folder) / "weights").exists() for folder, _ in saved.values())
        self.given[pool] = dict(saved)
        self._drawn[self._policy.played, pool] = {adapter: Path(of).parent.name for adapter, (of, _) in saved.items()}

    def lose(self, engines: Mapping[Any, str]) -> None:
        assert not engines

    def joined(self, records: list[Any], version: int) -> None:
        assert not records


class Sender(Publisher):
    """Has no engines. What it gives a pool of past versions, the fleet keeps."""

    def give(self, pool: str, saved: SavedWeights) -> None:
        fleet: Any = self.fleet
        fleet.give(pool, saved)


class Life(Trainer):
    """One attempt of a run in a folder, from its start to its end or to its `fate`."""

    def __init__(self, config: RunConfig, folder: Path, fate: Fate, drawn: dict[tuple[str, str], Any]) -> None:
        self.fate = fate
        self.lease = FolderLease.take(folder)
        control, silent = RunControl(self.lease), cast(Any, Silent())
        self.policy = Policy("policy", tuple(Role), config, folder, "/models/base", silent)
        self.policy.fate, self.policy.publishes = fate, []
        fleet: Any = Fleet(fate, self.policy, drawn)
        self.fleet = fleet
        policies: list[LearningPolicy] = [self.policy]
        publisher = Sender(config, self.lease, policies, fleet, silent)
        seating = Seating(config, policies, "/models/base", {})
        attacker_seats = 2 if config.meets_others else 1
        self.words = taboo_words(WORDS, config.seed, attacker_seats, config.words.games_per_word, config.words.order)
        self.league = LeaguePlay(config, self.lease, policies, publisher, seating, silent)
        ground: Any = SimpleNamespace(config=config, folder=folder, status=silent, buffer_metrics=silent, life=self)
        ground.split, ground.version, ground.meter = TimeSplit(), 0, silent
        samples = StageSamples(config, silent, silent, {"policy"}, silent)
        quiet = (
            "status",
            "recorder",
            "callbacks",
            "restarts",
            "reservation",
            "buffer",
            "matches",
            "frozen",
            "collapse",
            "tasks",
        )
        parts: Any = SimpleNamespace(
            config=config,
            control=control,
            policies=policies,
            fleet=fleet,
            publisher=publisher,
            ground=ground,
            seating=seating,
            words=self.words,
            cards={},
            samples=samples,
            league=self.league,
            exploitability=[],
            **dict.fromkeys((*quiet, "callbacks"), silent),
        )
        super().__init__(parts, Recovery(parts))

    def start(self) -> None:
        self._parts.publisher.start_learners()

    def play_expert(self) -> list[Episode]:
        return [self._game("expert", number, WORDS[0], ("expert", "expert")) for number in range(4)]

    @contextmanager
    def streaming(self, state: RunState) -> Iterator[Any]:
        yield Streamed(self, state)

    def evaluate(self, stage: Stage) -> None:
        saved = "base" if stage == BASE else (self.policy.saved(stage) / "weights").read_text()
        assert self.policy.learners.weights == saved, "only a stage's own weights are measured"  # type: ignore[union-attr]
        assert self.policy.played == saved, "and its engines have them"
        self.fate.point()

    def end_learning(self) -> None:
        """The test looks at the learners' last weights."""

    def _write_cards(self, stage: Stage | None = None) -> None:
        """None."""

    def play(self, stage: str, number: int, word: str, seats: tuple[str, str]) -> Episode:
        """A game, or what the log has of it. The log also names the players' weights."""
        path = self.lease.folder / "episodes" / f"{stage}.log"
        path.parent.mkdir(exist_ok=True)
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for line in lines:
            if line["number"] == number:
                assert line["word"] == word
                return self._game(stage, number, word, tuple(line["players"]), line)
        learners: Any = self.policy.learners
        assert self.fleet.roster.awake.is_set()
        assert learners.is_awake is (self.config.placement == "separate")
        self.fate.point()
        players, versions = zip(*(self._player(seat) for seat in seats), strict=True)
        policies = ["past policy" if "past" in seat else "policy" for seat in seats]
        line = {"number": number, "word": word, "players": players, "versions": versions, "policies": policies}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return self._game(stage, number, word, players, line)

    def _player(self, seat: str) -> tuple[str, int]:
        """(the weights that play it, the version that stamps its turns)"""
        if "past" not in seat:
            return self.policy.played, self.policy.version
        of = self.league.seats[seat]
        folder, version = self.fleet.given[of.pool].get(of.adapter, ("", 0))
        return (Path(folder) / "weights").read_text() if folder else "base", version

    def _game(
        self, stage: str, number: int, word: str, players: tuple[str, ...], line: Mapping[str, Any] | None = None
    ) -> Episode:
        num_outcomes = 3 if number % 2 else 2  # not all of a stage's games are tied
        outcome = OUTCOMES[int(digest(stage, number, word, players), 16) % num_outcomes]
        line = line or {"policies": ["scripted"] * 2, "versions": [0, 0]}
        turns = tuple(
            Turn(role, "x", (1,), (2,), (-0.5,), policy, version, version)
            for role, policy, version in zip(Role, line["policies"], line["versions"], strict=True)
        )
        if stage == "expert":
            outcome = Outcome.ATTACKER_WINS
        verdict = Verdict(outcome, EndReason.SAID_WORD, 2, "said", None, None)
        return Episode(f"{stage}/{number}", number, stage, word, 2, "strict", 1.0, turns, verdict)


class Silent:
    """The parts of a run that this test needs nothing of."""

    results: tuple[()] = ()
    mix_share = 0.0
    names: tuple[()] = ()

    def as_json(self) -> list[Any]:
        return []

    def remote(self) -> None:
        """`reread` of the buffer."""

    def __getattr__(self, name: str) -> Any:
        return self if name in ("handle", "reread") else lambda *_, **__: None


class Streamed:
    """A stream whose versions play their own games, two for each."""

    def __init__(self, life: Life, state: RunState) -> None:
        self._life = life
        self._num_learned = state.parts
        self._opponents = life.league.opponents()

    def next_batch(self, stage: Stage, what: str) -> tuple[list[Episode], set[int]]:
        words = taboo_words(WORDS, 0, attacker_seats=2)
        leases: list[Lease] = [words.lease() for _ in range(2 * self._num_learned + 2)]
        return [
            self._life.play(str(STREAM), lease.index, lease.word, self._opponents(lease.index)) for lease in leases[-2:]
        ], set()

    def meet(self, opponents: Opponents) -> None:
        self._opponents = opponents

    def learned(self) -> dict[str, Any]:
        self._num_learned += 1
        return {"num_learned": self._num_learned}


def play_round(
    ground: Any, stage: str, scenarios: Sequence[Any], seats: Any, opponents: Any, more: Callable[..., Any]
) -> list[Episode]:
    episodes: list[Episode] = []
    while scenarios:
        for number, scenario in enumerate(scenarios, len(episodes)):
            episodes.append(ground.life.play(stage, number, scenario.text, opponents(number)))
        scenarios = more(episodes)
    return episodes


def config_of(schedule: str, imitation: bool, every_s: float, adapters: bool, placement: str) -> RunConfig:
    return parse_config(
        {
            "schedule": schedule,
            "placement": placement,
            "imitation": {"enabled": imitation, "batch_games": 2},
            "stream": {"games_per_version": 2, "max_lag": 0},
            "self_play": {"rounds": 3, "games_per_round": 8 if schedule == "stream" else 4, "batch_games": 2},
            "objective": {"baseline": "moving", "learn_from": "both"},
            "league": {"past_share": 0.7, "max_snapshots": 3, "num_engines": 2}
            | {"choose": "nash" if adapters else "hard"},
            "learner": {"lora": {"export": "adapter"}} if adapters else {},
            "checkpoint": {"every_s": every_s, "every_versions": 100},
            "words": {"num_held_out": 1},
        }
    )


def lived(config: RunConfig, folder: Path, fates: Sequence[Fate]) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    """What a run comes to whose attempts have these fates, and what it has published."""
    folder.mkdir()
    (folder / "models").mkdir()
    published: list[tuple[int, str]] = []
    drawn: dict[tuple[str, str], Any] = {}
    for fate in fates:
        life = Life(config, folder, fate, drawn)
        try:
            train(life)
            break
        except ProcessEnded:
            pass
        finally:
            published += life.policy.publishes
            life.lease.release()
    ends = {text for name, text in outcome_of(life)["models"].items() if name.startswith("models")} | {"base"}
    is_stream = config.schedule == "stream"
    kept = {key: versions for key, versions in drawn.items() if is_stream or key[0] in ends}
    return outcome_of(life) | {"drawn": kept}, published


def outcome_of(life: Life) -> dict[str, Any]:
    folder = life.lease.folder

    def names(found: Any) -> Any:
        return json.loads(json.dumps(found).replace(str(folder), "RUN"))

    newest = life.recovery._checkpoints.newest()
    assert newest is not None
    saved = {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("weights"))}
    games = {
        path.stem: sorted(
            (line["number"], line["word"], line["players"]) for line in map(json.loads, path.read_text().splitlines())
        )
        for path in (folder / "episodes").glob("*.log")
    }
    state = vars(newest[1]) | {"order": 0}
    kept = [f"v{past.version}" for past in life.league.league.kept]
    assert sorted(path.name for path in (folder / "league").glob("v*")) == sorted(kept), "and no leftovers"
    return {
        "league": names(life.league.league.as_json()),
        "words": life.words.state(),
        "weights": life.policy.learners.weights,  # type: ignore[union-attr]
        "models": {name: text for name, text in saved.items() if name.startswith(("league", "models"))},
        "games": games,
        "state": names(state),
    }


@pytest.fixture(autouse=True)
def without_ray_and_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_verbs, "play_round", play_round)
    for name in ("sync_file", "sync_folder"):
        monkeypatch.setattr(checkpoint, name, lambda path: None)
        monkeypatch.setattr(whole_files, name, lambda path: None)


# Schedule, imitation, every_s, adapters, placement, and every how-manieth point is tried: all of them take minutes.
EVERY = [
    pytest.param("rounds", False, 3600.0, False, "separate", 4, id="rounds"),
    pytest.param("rounds", True, 1e-6, False, "separate", 3, id="rounds-saved-at-every-step"),
    pytest.param("rounds", False, 1e-6, True, "separate", 7, id="adapters-saved-at-every-step"),
    pytest.param("rounds", True, 1e-6, False, "colocated", 5, id="colocated-saved-at-every-step"),
    pytest.param("stream", True, 3600.0, False, "separate", 5, id="stream"),
]


@pytest.mark.parametrize("error", [ProcessEnded, LearnersLostError])
@pytest.mark.parametrize(("schedule", "imitation", "every_s", "adapters", "placement", "stride"), EVERY)
def test_wherever_it_ends_a_resumed_run_comes_to_the_same(
    schedule: str,
    imitation: bool,
    every_s: float,
    adapters: bool,
    placement: str,
    stride: int,
    error: type[BaseException],
    tmp_path: Path,
) -> None:
    config, whole = config_of(schedule, imitation, every_s, adapters, placement), Fate()
    expected, published = lived(config, tmp_path / "whole", [whole])
    assert len(expected["league"]["kept"]) == 3
    assert whole.num_points > 30
    if error is LearnersLostError:
        stride *= 3
    for at in range(1, whole.num_points + 1, stride):
        found, numbers = lived(config, tmp_path / str(at), [Fate(at, error), Fate()])
        for what, value in expected.items():
            assert found[what] == value, f"{what}, ended at point {at}"
        assert [number for number, _ in numbers] == sorted({number for number, _ in numbers}), "no number twice"
        ends = [weights for _, weights in published]
        assert list(dict.fromkeys(weights for _, weights in numbers if weights in ends)) == ends, f"point {at}"


@pytest.mark.parametrize(("every_s", "order"), [(3600.0, "shuffled"), (1e-6, "shuffled"), (1e-6, "progress")])
def test_a_run_that_refills_comes_to_the_same_wherever_it_ends(every_s: float, order: str, tmp_path: Path) -> None:
    plain = config_of("rounds", False, every_s, False, "separate").model_dump()
    changes: dict[str, dict[str, Any]] = {
        "words": {"games_per_word": 2, "order": order},
        "objective": {"baseline": "scenario", "baseline_std": "batch", "drop_agreeing": True},
        "self_play": {"games_per_round": 8, "refill_agreeing": 2},
        "league": {"past_share": 0},
    }
    config = parse_config({**plain, **{part: {**plain[part], **keys} for part, keys in changes.items()}})
    whole = Fate()
    expected, _ = lived(config, tmp_path / "whole", [whole])
    sizes = {stage: len(games) for stage, games in expected["games"].items()}
    assert set(sizes.values()) <= {8, 10, 12}
    assert max(sizes.values()) > 8, "a round was refilled"
    assert expected["words"]["next_index"] == sum(sizes.values())
    if order == "progress":
        assert set(expected["words"]["spreads"][0]) <= set(WORDS)
        assert max(map(int, expected["words"]["passes"][0])) >= 2, "passes were drawn by what was observed"
    for at in range(1, whole.num_points + 1, 3):
        found, _ = lived(config, tmp_path / str(at), [Fate(at), Fate()])
        for what, value in expected.items():
            assert found[what] == value, f"{what}, ended at point {at}"


@pytest.mark.parametrize(("schedule", "imitation", "every_s", "adapters", "placement", "stride"), EVERY)
def test_a_run_that_ends_again_and_again_comes_to_the_same(
    schedule: str, imitation: bool, every_s: float, adapters: bool, placement: str, stride: int, tmp_path: Path
) -> None:
    config = config_of(schedule, imitation, every_s, adapters, placement)
    expected, _ = lived(config, tmp_path / "whole", [Fate()])
    for gap in (11, 17):
        found, _ = lived(config, tmp_path / str(gap), [Fate(gap + number) for number in range(100)])
        for what, value in expected.items():
            assert found[what] == value, f"{what}, ended after {gap} points and more"


@pytest.mark.parametrize("schedule", ["rounds", "stream"])
def test_a_run_that_ends_in_its_second_phase_comes_to_the_same(schedule: str, tmp_path: Path) -> None:
    usual = config_of(schedule, False, 1e-6, False, "separate")
    settings = usual.model_dump(mode="json")
    settings["self_play"]["phases"] = [{"rounds": 1, "payoffs": {"trap": [trap, -1]}} for trap in (0.5, 0.25)]
    config, whole = parse_config(settings), Fate()
    expected, _ = lived(config, tmp_path / "whole", [whole])
    without, _ = lived(usual, tmp_path / "without", [Fate()])
    assert expected["weights"] != without["weights"]
    for at in range(whole.num_points // 3, 2 * whole.num_points // 3, 9):
        found, _ = lived(config, tmp_path / str(at), [Fate(at), Fate()])
        for what, value in expected.items():
            assert found[what] == value, f"{what}, ended at point {at}"


@pytest.mark.parametrize("reference", [{"kl_reference_every": 2}, {"kl_reference_average": 0.5}], ids=str)
@pytest.mark.parametrize(("schedule", "every_s", "stride"), [("rounds", 1e-6, 4), ("stream", 3600.0, 6)])
def test_wherever_it_ends_a_resumed_run_has_the_same_moving_reference(
    schedule: str, every_s: float, stride: int, reference: dict[str, Any], tmp_path: Path
) -> None:
    config = with_reference(config_of(schedule, True, every_s, False, "separate"), kl_reference="start", **reference)
    whole = Fate()
    expected, _ = lived(config, tmp_path / "whole", [whole])
    fixed, _ = lived(with_reference(config, kl_reference="start"), tmp_path / "fixed", [Fate()])
    assert expected["weights"] != fixed["weights"], "it moves"
    for at in range(1, whole.num_points + 1, stride):
        found, _ = lived(config, tmp_path / str(at), [Fate(at), Fate()])
        for what, value in expected.items():
            assert found[what] == value, f"{what}, ended at point {at}"


def with_reference(config: RunConfig, **reference: Any) -> RunConfig:
    settings = config.model_dump()
    moves = {"kl_reference_every": None, "kl_reference_average": None}
    return parse_config({**settings, "objective": {**settings["objective"], **moves, **reference}})
