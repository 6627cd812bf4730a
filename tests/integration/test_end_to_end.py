"""The whole loop for real, on a tiny model: Ray actors, vLLM, the buffer, DeepSpeed, weight sync."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from rich.console import Console
from safetensors.numpy import load_file

from actors.models import load_tokenizer
from actors.transformers_policy import TransformersPolicy
from cluster.commands.data import run_reward
from cluster.commands.learn import run_learn
from cluster.commands.play import run_play
from cluster.commands.train import run_training
from cluster.commands.watch import FolderSource
from cluster.launch.placed_run import placed_run, training_words
from cluster.monitor.frame import frame
from cluster.runtime.ray_session import get
from cluster.runtime.run_folder import make_run_folder
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.formats import read_games, read_samples
from spag_ray.episodes.log import read_log
from spag_ray.errors import ConfigError, StopRequestedError
from spag_ray.game.rules import Role
from spag_ray.games.taboo.decks import load_deck
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from tests.support.runs import PENALISED, drawn_by_tensorboard, quiet, records_of, steps_of, stream_run, tiny_run
from tests.support.tiny_model import TARGETS

SECRET = "hf_nobody_may_read_this"
CALLBACK = """
class Listens:
    def say(self, text):
        with open({heard!r}, "a") as file:
            file.write(text + "\\n")
    def on_stage_began(self, stage): self.say(f"began {{stage}}")
    def on_games(self, stage, episodes): self.say(f"games {{stage}} {{len(episodes)}}")
    def on_step(self, stage, policy, report): self.say(f"step {{report.step}}")
    def on_version(self, policy, version): self.say(f"version {{version}}")
    def on_stage_ended(self, stage, models): self.say(f"ended {{stage}}")
"""


pytestmark = pytest.mark.usefixtures("secret", "local_ray")


@pytest.fixture(scope="module")
def secret() -> Iterator[None]:
    """In the environment before Ray starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", SECRET)
        yield


def check_word_scored(episodes: list[Episode], model: Path) -> None:
    """Against transformers' own forward pass with these weights."""
    renderer = taboo_renderer(load_template("chat"), load_tokenizer(str(model)), 2)
    policy = TransformersPolicy(str(model))
    scored = [(turn, each.scenario) for each in episodes for turn in each.turns if turn.role is Role.DEFENDER]
    asked = []
    for turn, word in scored:
        claim = renderer.claim(word)
        asked.append((turn.prompt_ids + claim.opening_ids, claim.word_ids))
    expected = [sum(score.logprobs) for score in asyncio.run(policy.score(asked))]
    assert [turn.word_logprob for turn, _ in scored] == pytest.approx(expected, abs=2e-3)


@pytest.mark.timeout(400)
def test_a_run_imitates_plays_learns_syncs_and_says_what_happened(
    tiny_model: Path, words: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, heard = tmp_path / "run", tmp_path / "heard.txt"
    (tmp_path / "mine.py").write_text(CALLBACK.format(heard=str(heard)))
    console = Console(record=True, width=160)
    tracking = {"callbacks": [f"{tmp_path}/mine.py:Listens"]}
    evaluation, sync = {"games": 6, "base_games": 3}, {"channel": "shared_memory"}  # the learner itself sends weights
    config = tiny_run(tiny_model, words, evaluation=evaluation, sync=sync, tracking=tracking)
    run_training(config, folder, console)
    assert "A worker died" not in "".join(capfd.readouterr()), "Ray takes an engine that was closed for one that died"
    printed = console.export_text()
    for stage in ("base", "imitated", "spag-1", "spag-2"):
        assert stage in printed
        assert len(list(read_log(folder / "episodes" / f"eval-{stage}.log"))) == (3 if stage == "base" else 6)
    assert "spag-2 as attacker against imitated" in printed
    assert "spag-2 as defender" in printed
    assert f"report: {folder}/report.html" in printed.replace("\n", "")
    assert (folder / "report.html").is_file()

    told = [line for line in heard.read_text().splitlines() if not line.startswith("step")]
    assert told == [
        *("began imitated", "games expert 12", "ended imitated", "version 1"),
        *("began spag-1", "games spag-1 24", "ended spag-1", "version 2"),
        *("began spag-2", "games spag-2 24", "ended spag-2", "version 3"),
    ]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["kind"] == "step" for line in metrics) == len(heard.read_text().splitlines()) - len(told)
    assert [line["version"] for line in metrics if line["kind"] == "sync"] == [1, 2, 3]
    assert all(line["num_bytes"] > 100_000 for line in metrics if line["kind"] == "sync")
    steps = [line for line in metrics if line["kind"] == "step"]
    assert {line["stage"] for line in steps} == {"imitated", "spag-1", "spag-2"}
    # The engine played the learner's newest weights: its log-probabilities are the learner's.
    assert all(line["mismatch_mean"] == pytest.approx(1.0, abs=0.01) for line in steps if line["stage"] != "imitated")

    iterations = [line for line in metrics if line["kind"] == "iteration"]
    assert [line["stage"] for line in iterations] == ["spag-1", "spag-2"]
    assert iterations[-1]["step"] == len(steps)
    for line in iterations:
        parts = ("generate_s", "score_s", "train_s", "sync_s", "evaluate_s", "checkpoint_s")
        assert 0 < line["engines_idle_s"] < line["seconds"]
        assert 0.95 * line["seconds"] < sum(line[name] for name in parts) <= line["seconds"] + 0.01

    engines = {line["stage"]: line for line in metrics if line["kind"] == "engine"}
    assert engines.keys() >= {"eval-base", "spag-1", "eval-spag-1", "spag-2", "eval-spag-2"}
    assert "expert" not in engines, "no engine played"
    assert all(line["busy_share"] > 0.3 for line in engines.values())
    for stage in ("spag-1", "spag-2"):
        line = engines[stage]
        assert 0 < line["kv_cache_mean"] <= line["kv_cache_max"] < 1
        assert 0 < line["running_mean"] <= line["running_max"] <= config.engine.max_num_seqs
        assert 0 < line["prefix_hit_share"] < 1, "a turn's prompt begins with the game so far"
        assert line["preemptions"] == 0, "there is room for all"
        assert "gpu_share" not in line, "there is no GPU"

    (elo,) = (line for line in metrics if line["kind"] == "elo")
    assert (elo["stage"], elo["against"]) == ("spag-2", "imitated"), "the only other stage that it met"
    assert elo["elo"] == pytest.approx((elo["elo/attacker"] + elo["elo/defender"]) / 2, abs=0.1)
    for line in (each for each in metrics if each["kind"] == "play" and each["stage"] != "expert"):
        assert sum(line[f"win_share/{role}"] for role in Role) + line["tie_share"] + line["breach_share"] == (
            pytest.approx(1.0, abs=1e-3)
        )
        assert 1 <= line["reply_tokens_mean"] <= line["reply_tokens_max"] <= 10

    drawn = drawn_by_tensorboard(folder)
    for field in ("loss", "entropy", "num_target_tokens", "compute_s", "skipped"):
        points = drawn[f"step/{field}/imitation"] + drawn[f"step/{field}/self_play"]
        assert points == [(n, np.float32(line[field])) for n, line in enumerate(steps, 1)]
    assert "step/kl/imitation" not in drawn, "it compares with nothing"
    diverged = [(n, np.float32(line["kl"])) for n, line in enumerate(steps, 1) if "kl" in line]
    assert drawn["step/kl/self_play"] == diverged
    assert len(diverged) == sum(line["stage"] != "imitated" for line in steps)
    syncs = [line for line in metrics if line["kind"] == "sync"]
    assert drawn["sync/num_bytes"] == [(line["version"], np.float32(line["num_bytes"])) for line in syncs]
    played = [line for line in metrics if line["kind"] == "play" and line["stage"].startswith("spag-")]
    assert drawn["play/tokens/self_play/taboo"] == [(line["version"], line["tokens"]) for line in played]

    # What the defender could have known is scored in games on held-out words alone, with the weights that played them.
    counted = {line["stage"]: line for line in metrics if line["kind"] == "held_out"}
    matches = {"match-spag-2@imitated", "match-imitated@spag-2"}
    assert counted.keys() == {"eval-base", "eval-imitated", "eval-spag-1", "eval-spag-2"} | matches
    models = {"eval-base": tiny_model, "match-imitated@spag-2": folder / "models" / "spag-2"}
    models |= {f"eval-{stage}": folder / "models" / stage for stage in ("imitated", "spag-1", "spag-2")}
    for stage, model in models.items():
        episodes = list(read_log(folder / "episodes" / f"{stage}.log"))
        assert counted[stage]["games"] == len(episodes)
        assert counted[stage]["scored_games"] > 0
        check_word_scored(episodes, model)
    for stage in ("expert", "spag-1"):
        episodes = list(read_log(folder / "episodes" / f"{stage}.log"))
        assert all(turn.word_logprob is None for episode in episodes for turn in episode.turns)
    assert "could have known" in printed
    assert "spag-2 v imitated" in printed

    view = FolderSource(folder).look()
    lines = [line.plain for line in frame(view, 80, 24, time.time())]
    assert lines[-1] == view.end == "the run has finished"
    assert view.num_unread == 0
    assert "2 of 2 rounds trained" in lines[1]
    assert any(line.startswith("spag-2 v imitated") for line in lines)
    assert {name: dict(outcomes) for name, outcomes in view.held_out.items() if name == "spag-1"} == {
        "spag-1": dict(Counter(str(e.verdict.outcome) for e in read_log(folder / "episodes" / "eval-spag-1.log")))
    }

    for version, stage in ((1, "spag-1"), (2, "spag-2")):
        episodes = list(read_log(folder / "episodes" / f"{stage}.log"))
        assert sorted(episode.number for episode in episodes) == list(range(24))
        assert {turn.first_version for episode in episodes for turn in episode.turns} == {version}
    held_out = {episode.scenario for episode in read_log(folder / "episodes" / "eval-base.log")}
    trained = {e.scenario for stage in ("expert", "spag-1") for e in read_log(folder / "episodes" / f"{stage}.log")}
    assert len(held_out) == 2
    assert not held_out & trained
    assert (folder / "models" / "spag-2" / "tokenizer.json").is_file()
    kept = (folder / "logs" / "train.log").read_text()
    assert f"run folder: {folder}\n" in kept
    assert f"models: {folder}/models" in kept
    cards = {stage: (folder / "models" / stage / "README.md").read_text() for stage in ("imitated", "spag-1", "spag-2")}
    assert all("## Results" in card and f"{stage} v {stage} | 6 |" in card for stage, card in cards.items())
    assert "Mean score over both seats against imitated" in cards["spag-2"]
    assert json.loads((folder / "versions.json").read_text())["packages"]["ray"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.long  # two whole runs
@pytest.mark.timeout(400)
def test_a_greedy_run_in_order_gives_the_same_weights_twice(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    learnable = training_words(tiny_run(tiny_model, words), {})[0][0]
    # One game teaches the attacker to say "water", the other the defender to guess.
    games = [
        {"history": [{"role": "attacker", "content": "water"}, {"role": "defender", "content": reply}],
         "target_word": learnable, "max_turns": 2}
        for reply in (f"a {learnable} ?", f"i know the word ! it is {learnable}")
    ]  # fmt: skip
    expert = tmp_path / "expert.json"
    expert.write_text(json.dumps(games * 16))
    changes = {
        "imitation": {"source": str(expert), "batch_games": 2, "learning_rate": 5e-3},
        "sampling": {"temperature": 0.0, "max_new_tokens": 8},
        "self_play": {"rounds": 1, "games_per_round": 8, "games_in_flight": 1},
        "evaluation": {"games": 0},
    }
    for name in ("one", "two"):
        run_training(tiny_run(tiny_model, words, **changes), tmp_path / name, quiet())
    one, two = (list(read_log(tmp_path / name / "episodes" / "spag-1.log")) for name in ("one", "two"))
    assert one == two
    assert len(one) == 8
    weights = [load_file(tmp_path / name / "models" / "spag-1" / "model.safetensors") for name in ("one", "two")]
    base = load_file(tmp_path / "one" / "models" / "imitated" / "model.safetensors")
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert any((weights[0][name] != base[name]).any() for name in base)


@pytest.mark.long  # three commands
@pytest.mark.timeout(400)
def test_play_reward_and_learn_hand_each_other_published_files(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(tiny_model, words, engine={"kind": "transformers"}, preset="published", game={"max_turns": 3})
    games, data, model = tmp_path / "games.json", tmp_path / "data.json", tmp_path / "model"
    run_play(config, None, None, words, games, quiet())
    played = read_games(games)
    assert [game["target_word"] for game in played] == list(TARGETS)
    sft = tmp_path / "sft.json"
    sft.write_text(json.dumps([{"instruction": "say water", "input": "", "output": "water"}]))
    decided = [
        {"history": [{"role": "attacker", "content": "water"}, {"role": "defender", "content": "a river ?"}],
         "target_word": "river", "max_turns": 3}
    ]  # fmt: skip
    games.unlink()
    games.write_text(json.dumps(played + decided))
    run_reward(games, data, quiet(), decay=0.8, rules="published", prompts="flat", sft=sft)
    rows = read_samples(data)
    assert rows[-1]["type"] == "sft"
    assert any(row.get("reward") for row in rows)
    run_learn(config, "spag", data, model, quiet())
    assert load_file(model / "model.safetensors")
    run_learn(config, "imitation", data, tmp_path / "model2", quiet())


def test_a_run_that_ray_cannot_place_is_refused_without_a_folder(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(tiny_model, words, policies="separate")
    with pytest.raises(ConfigError, match=r"4 CPUs are needed .* Ray has 2; ask for fewer"):
        run_training(config, tmp_path / "run", quiet())
    assert not (tmp_path / "run").exists()


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("update", "kind", "channel"),
    [
        ("between_games", "transformers", "object_store"),
        pytest.param("in_flight", "vllm", "shared_memory", marks=pytest.mark.long),
    ],
)
def test_a_stream_plays_while_it_learns_and_an_engine_is_killed_and_others_join(
    update: str, kind: str, channel: str, tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"stream": {"max_lag": 2}, "sync": {"update": update, "channel": channel}}
    config = stream_run(tiny_model, words, 1000, engine={"kind": kind, "turn_timeout_s": 30}, **changes)
    folder = make_run_folder(tmp_path / "run", config)
    targets = list(TARGETS)

    def syncs() -> list[dict[str, Any]]:
        return records_of(folder, "sync")

    with placed_run(
        config, folder, str(tiny_model), {"taboo": targets[2:]}, {"taboo": targets[:2]}, load_deck("everyday")
    ) as run:
        training = run.train.remote()

        def train_until(is_time: Callable[[], bool]) -> None:
            while not is_time():
                assert not ray.wait([training], timeout=0.2)[0], ray.get(training)

        def have_joined(count: int, num_engines: int) -> bool:
            return len(records_of(folder, "engine_joined")) == count and syncs()[-1]["num_engines"] == num_engines

        train_until(lambda: ray.get(run.status.remote()).version >= 2)
        ray.kill(ray.get_actor(f"engine-policy-0-{folder.name}"))
        names = {"engine-policy-0.2"}
        if kind == "transformers":  # three vLLM engines need minutes here
            names.add(ray.get(run.add_engine.remote()))
        train_until(lambda: have_joined(len(names), len(names) + 1))
        run.stop_soon.remote(60)
        with pytest.raises(StopRequestedError):
            get(training)
    lost, joined = records_of(folder, "engine_lost"), records_of(folder, "engine_joined")
    assert [line["what"] for line in records_of(folder, "restart")] == ["engine-policy-0"]
    assert [line["engine"] for line in lost] == ["engine-policy-0"]
    assert {line["engine"] for line in joined} == names
    assert all(line["version"] >= 2 for line in joined)
    batches, num_versions = records_of(folder, "stream"), len(syncs())
    assert [line["version"] for line in syncs()] == list(range(1, num_versions + 1))
    assert all(line["probe_gap_max"] < 1e-3 for line in syncs())
    lags = {int(key[4:]): batches[-1][key] for key in batches[-1] if key.startswith("lag_")}
    assert max(lags) <= 2
    assert sum(lags.values()) == 8 * len(batches)
    assert all(0 <= line["staleness_mean"] <= line["staleness_max"] <= 2 for line in batches)
    iterations = records_of(folder, "iteration")
    assert 0 <= num_versions - len(iterations) <= 1, "the stop may have come mid-iteration"
    assert [line["version"] for line in iterations] == list(range(1, len(iterations) + 1))
    parts = ("generate_s", "score_s", "train_s", "sync_s", "checkpoint_s")
    seconds = [sum(line.get(name, 0.0) for name in parts) for line in iterations]
    assert sum(seconds) > 0.9 * sum(line["seconds"] for line in iterations)
    assert all(0 <= line["engines_idle_s"] <= line["seconds"] for line in iterations if "engines_idle_s" in line)
    assert {line["engine"] for line in records_of(folder, "engine")} >= names
    episodes = list(read_log(folder / "episodes" / "stream.log"))
    numbers = sorted(episode.number for episode in episodes)
    assert len(numbers) == len(set(numbers)), "no game was lost"
    assert len(set(range(numbers[-1])) - set(numbers)) <= 8, "no game was lost"
    mixed = sum(len({turn.first_version for turn in episode.turns}) > 1 for episode in episodes)
    assert update != "between_games" or mixed <= 8, "only games whose engine died go on under other weights"
    steps = steps_of(folder)
    assert {step["step"] for step in steps} == set(range(1, len(steps) + 1)), "one stage, one warm-up"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("schedule", ["rounds", "stream"])
@pytest.mark.long  # a league with endpoints: test_tournament.py
def test_a_league_plays_earlier_versions_and_a_fixed_model_and_learns_its_own_turns_alone(
    schedule: str, tiny_model: Path, other_tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    config = tiny_run(
        tiny_model,
        words,
        schedule=schedule,
        stream={"games_per_version": 12, "max_lag": 1},
        league={
            "past_share": 0.4,
            "fixed": [{"model": str(other_tiny_model), "share": 0.3}],
            "max_snapshots": 2,
            "choose": "nash" if schedule == "stream" else "even",
        },
        engine={"kind": "transformers", "num_cpus": 0.25},
        learner={"num_cpus": 0.25},
        game={"payoffs": PENALISED},  # a round of random replies may have no winner
        objective={"learn_from": "both"},
        self_play={"rounds": 3},
        evaluation={"games": 0},
    )
    run_training(config, tmp_path / "run", quiet())
    folder = tmp_path / "run"
    logs = ["stream"] if schedule == "stream" else [f"spag-{number}" for number in (1, 2, 3)]
    episodes = [episode for name in logs for episode in read_log(folder / "episodes" / f"{name}.log")]
    seats = [{turn.policy for turn in episode.turns} for episode in episodes]
    against = {"past policy", str(other_tiny_model)}
    assert set().union(*seats) == {"policy", *against}
    attacking = [episode for episode in episodes if episode.turns[0].policy == "policy" and len(episode.turns) > 1]
    defending = [episode for episode in episodes if episode.turns[0].policy in against]
    assert attacking
    assert defending
    past_versions = {turn.first_version for e in episodes for turn in e.turns if turn.policy == "past policy"}
    assert past_versions <= set(range(1, 7))
    assert len(past_versions) > 1
    written = json.loads((folder / "league.json").read_text())
    kept = [past["version"] for past in written["kept"]]
    assert len(kept) == 2
    assert sorted(path.name for path in (folder / "league").iterdir()) == [f"v{v}" for v in kept]
    assert (
        sum(sum(v for k, v in row.items() if k not in ("attacker", "defender", "margin")) for row in written["games"])
        >= 36
    )
    assert any(name.startswith("policy@") for name in written["ratings"])
    assert sum(past["share"] for past in written["kept"]) == pytest.approx(1, abs=1e-3)


@pytest.mark.long  # two learners and two engines: a minute
@pytest.mark.timeout(400)
def test_an_attacker_and_a_defender_learn_side_by_side_from_all(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(
        tiny_model,
        words,
        policies="separate",
        engine={"kind": "transformers", "num_cpus": 0.5},
        learner={"num_cpus": 0.5},
        game={"payoffs": PENALISED},
        objective={"learn_from": "both", "baseline": "moving", "length_norm": "constant", "constant_length": 10},
        render="varied",
        self_play={"rounds": 1},
    )
    run_training(config, tmp_path / "run", quiet())
    steps = steps_of(tmp_path / "run")
    learned = {(step["stage"], step["policy"]) for step in steps}
    # In two turns the expert's defender wins no game, so imitation has nothing for it.
    assert learned == {
        ("imitated-attacker", "attacker"),
        ("spag-1-attacker", "attacker"),
        ("spag-1-defender", "defender"),
    }
    assert not any("gap_mean" in step for step in steps), "varied prompts were sampled by nobody"
    samples = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    decided = {line["what"]: line["decided"] for line in samples if line["kind"] == "samples"}
    verdicts = [episode.verdict.outcome for episode in read_log(tmp_path / "run" / "episodes" / "expert.log")]
    assert decided["imitation"] == sum(outcome.is_decided for outcome in verdicts), "no breach is imitated"
    saved = {role: load_file(tmp_path / "run" / "models" / f"spag-1-{role}" / "model.safetensors")
             for role in ("attacker", "defender")}  # fmt: skip
    assert any((saved["attacker"][name] != saved["defender"][name]).any() for name in saved["attacker"])
    episodes = list(read_log(tmp_path / "run" / "episodes" / "spag-1.log"))
    assert {turn.policy for episode in episodes for turn in episode.turns} == {"attacker", "defender"}


@pytest.mark.long  # ranks: test_learner.py
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("channel", "kind"),
    [("object_store", "transformers"), pytest.param("shared_memory", "vllm", marks=pytest.mark.long)],
)
def test_two_ranks_with_partitioned_weights_take_turns_with_the_engine_on_the_same_devices(
    channel: str, kind: str, tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    config = tiny_run(
        tiny_model,
        words,
        placement="colocated",
        engine={"kind": kind, "num_cpus": 0.5},
        learner={"num_ranks": 2, "zero_stage": 3, "num_cpus": 0.5},
        self_play={"rounds": 1},
        sync={"channel": channel},
    )
    run_training(config, tmp_path / "run", quiet())
    syncs = records_of(tmp_path / "run", "sync")
    assert [line["version"] for line in syncs] == [1, 2]
    assert all(line["probe_gap_max"] < 1e-3 for line in syncs), "the gathered weights are those that are played"
    saved = load_file(tmp_path / "run" / "models" / "spag-1" / "model.safetensors")
    assert {line["num_bytes"] for line in syncs} == {sum(tensor.nbytes for tensor in saved.values())}


@pytest.mark.long  # another vLLM engine, with room for adapters
@pytest.mark.timeout(400)
def test_adapters_travel_to_vllm_and_it_plays_what_was_learned(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    lora = {"rank": 8, "alpha": 32, "export": "adapter"}
    config = tiny_run(tiny_model, words, learner={"lora": lora}, self_play={"rounds": 2})
    run_training(config, tmp_path / "run", quiet())
    played = [step for step in steps_of(tmp_path / "run") if step["stage"].startswith("spag")]
    assert all(step["gap_mean"] < 0.01 and step["gap_max"] < 0.1 for step in played)
    base, saved = (load_file(folder / "model.safetensors") for folder in (tiny_model, tmp_path / "run/models/imitated"))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert abs(saved[name].astype("float32") - base[name].astype("float32")).max() > 1e-3, "imitation moved the policy"


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("reference", ["engine", "none"])
def test_the_turns_own_logprobs_can_stand_in_for_recomputed_ones(
    reference: str, tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers"},
        learner={"reference": reference},
        objective={"kl_coeff": 0.0},
        self_play={"rounds": 1},
        evaluation={"games": 0},
    )
    run_training(config, tmp_path / "run", quiet())
    played = [step for step in steps_of(tmp_path / "run") if step["stage"] == "spag-1"]
    assert played[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-3)
    assert played[0]["kl_loss"] == 0.0


def test_imitation_learns_rows_of_training_data_and_instructions(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    rows = [{"query": "say", "target": "water", "reward": 1.0, "role": "attacker", "weight": 1.0}] * 5
    data, sft = tmp_path / "rows.json", tmp_path / "sft.json"
    data.write_text(json.dumps(rows))
    sft.write_text(json.dumps([{"instruction": "say water", "input": "", "output": "water"}] * 3))
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers"},
        imitation={"source": str(data), "sft_file": str(sft), "batch_games": 2},
        self_play={"rounds": 0},
        evaluation={"games": 0},
    )
    run_training(config, tmp_path / "run", quiet())
    steps = steps_of(tmp_path / "run")
    assert len(steps) == 4
    assert steps[-1]["loss"] < steps[0]["loss"]
