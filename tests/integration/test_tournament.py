"""`spag-ray match` with real engines; players of matches as opponents in training."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from cluster.cli import app
from cluster.commands.train import run_training
from cluster.guarded import run_guarded
from spag_ray.config.loading import parse_config
from spag_ray.episodes.log import read_log
from spag_ray.errors import ModelError
from spag_ray.results.matches import Game, read_matches
from tests.support.faults import kill_engine
from tests.support.listening import free_ports
from tests.support.runs import PENALISED, quiet, records_of, said, tiny_run


@pytest.fixture(scope="module")
def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The tiny model behind vLLM's own server, on loopback."""
    log_path = tmp_path_factory.mktemp("served") / "server.log"
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny_model)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", "512", "--dtype", "float32", "--max-num-seqs", "8"]
    with log_path.open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"})
        try:
            url = f"http://127.0.0.1:{port}/v1"
            deadline = time.monotonic() + 180
            while True:
                try:
                    urllib.request.urlopen(f"{url}/models", timeout=2).close()
                    break
                except OSError:
                    assert server.poll() is None, log_path.read_text()
                    assert time.monotonic() < deadline, log_path.read_text()
                    time.sleep(1)
            yield f"{url}#tiny"
        finally:
            server.terminate()
            server.wait(30)


Play = Callable[..., dict[tuple[str, str], tuple[Game, ...]]]


@pytest.fixture
def play(tmp_path: Path, tiny_model: Path, words: Path, capsys: pytest.CaptureFixture[str]) -> Play:
    """`spag-ray match` with some arguments: greedy games in float32, one at a time; what matches.json then holds."""
    config = {
        "model": str(tiny_model),
        "engine": {"dtype": "float32", "max_model_len": 512, "kv_cache_gib": 0.1, "max_num_seqs": 4},
        "sampling": {"max_new_tokens": 6},
        "game": {"max_turns": 2},
        "evaluation": {"temperature": 0.0},
        "self_play": {"games_in_flight": 1},
        "cluster": {"num_cpus": 2, "object_store_gib": 0.2},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "matches.json"

    def play(*arguments: str) -> dict[tuple[str, str], tuple[Game, ...]]:
        command = ["match", str(tmp_path / "config.yaml"), "--words", str(words), "--games", "3", "--out", str(out)]
        assert run_guarded(lambda standalone_mode: app([*command, *arguments])) == 0, capsys.readouterr().err
        return {(match.attacker, match.defender): match.games for match in read_matches(out)}

    return play


@pytest.mark.parallel
@pytest.mark.parametrize("kind", ["transformers", pytest.param("vllm", marks=pytest.mark.long)])
def test_engines_take_one_players_weights_after_anothers(
    kind: str, tmp_path: Path, tiny_model: Path, other_tiny_model: Path, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slow: two engines. A copy of a model plays that model's games again, whatever weights came between; another
    model plays others."""
    copy = shutil.copytree(tiny_model, tmp_path / "copy")
    players = (f"a={tiny_model}", f"b={other_tiny_model}", f"c={copy}")
    games = play(*(part for each in players for part in ("--player", each)), "-o", f"engine.kind={kind}")
    assert len(games) == 9
    assert all(len(each) == 3 for each in games.values())
    run = tmp_path / "matches.json.run"
    a, mixed, c, b = (said(run / "episodes" / f"match-{pair}.log") for pair in ("a@a", "a@c", "c@c", "b@b"))
    assert a == c == mixed
    assert a != b
    logs = [path.name for path in (run / "logs").glob("engine-*.log")]
    assert len(logs) == 2, f"one engine a seat: {logs}"
    assert "c against b, both seats" in capsys.readouterr().out


@pytest.mark.long  # engines of two players, and those in their places
def test_a_players_engine_that_is_killed_is_replaced_and_the_match_is_played(
    tmp_path: Path, tiny_model: Path, other_tiny_model: Path, play: Play
) -> None:
    """Slow: two vLLM engines, and one in the place of each. The first match's games, and those after them, come out as
    if nothing had happened."""
    episodes = tmp_path / "matches.json.run" / "episodes"
    is_over, killed = threading.Event(), []

    def kill() -> None:
        for match, engine in (("match-a@a", "engine-defender-1-0.log"), ("match-b@b", "engine-attacker-1-0.log")):
            while not (episodes / f"{match}.log").exists() or not kill_engine(engine):
                if is_over.wait(0.02):
                    return
            killed.append(engine)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        copy = shutil.copytree(tiny_model, tmp_path / "copy")
        games = play("--player", f"a={tiny_model}", "--player", f"b={other_tiny_model}", "--player", f"c={copy}")
    finally:
        is_over.set()
        killer.join()
    assert len(killed) == 2
    assert len(games) == 9
    assert all(len(each) == 3 for each in games.values())
    a, mixed, c, b = (said(episodes / f"match-{pair}.log") for pair in ("a@a", "a@c", "c@c", "b@b"))
    assert a == c == mixed
    assert a != b
    replaced = {line["what"] for line in records_of(episodes.parent, "restart")}
    assert replaced == {"engine-defender-1-0", "engine-attacker-1-0"}


@pytest.mark.parallel
def test_a_served_model_meets_the_expert(tmp_path: Path, served: str, play: Play) -> None:
    """Slow: a vLLM server. What was played is kept when others play."""
    games = play("--player", f"far={served}", "--player", "expert=scripted", "--against", "expert")
    assert set(games) == {("far", "expert"), ("expert", "far")}
    after = play("--player", f"far={served}", "--player", "expert=scripted")
    assert {pair: after[pair] for pair in games} == games
    assert len(after) == 4
    texts = said(tmp_path / "matches.json.run-2" / "episodes" / "match-far@far.log")
    assert len({first for first, *_ in texts}) > 1, "greedy, and yet it said other things of other words"


def test_an_endpoint_where_nobody_answers_is_one_line(
    tmp_path: Path, tiny_model: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": str(tiny_model), "engine": {"max_model_len": 4096}}))
    with socket.socket() as closed:  # bound, never listening
        closed.bind(("127.0.0.1", 0))
        far = f"far=http://127.0.0.1:{closed.getsockname()[1]}/v1#tiny"
        command = ["match", str(tmp_path / "config.yaml"), "--words", str(words), "--out", str(tmp_path / "m.json")]
        assert run_guarded(lambda standalone_mode: app([*command, "--player", far])) == 2
    error = capsys.readouterr().err
    assert "no player there" in error
    assert error.count("\n") == 1


@pytest.mark.long  # another whole run
def test_a_served_model_and_an_expert_are_opponents(tmp_path: Path, tiny_model: Path, words: Path, served: str) -> None:
    """Slow: a vLLM server. Their turns are never trained on, and the win matrix has them."""
    fixed = [{"model": "scripted", "share": 0.4}, {"model": served, "share": 0.4}]
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers", "num_cpus": 0.5},
        learner={"num_cpus": 0.5},
        imitation={"enabled": False},
        game={"payoffs": PENALISED},
        objective={"learn_from": "both"},
        self_play={"rounds": 1, "games_per_round": 40},
        evaluation={"games": 0},
    )
    cards = {"words": {"source": "deck", "num_held_out": 10}, "league": {"fixed": fixed}}
    config = parse_config(config.model_dump(mode="json") | cards)
    folder = tmp_path / "run"
    run_training(config, folder, quiet())
    episodes = list(read_log(folder / "episodes" / "spag-1.log"))
    pairs = Counter(frozenset(turn.policy for turn in episode.turns[:2]) for episode in episodes)
    assert set(pairs) >= {frozenset(["policy", "scripted"]), frozenset(["policy", served])}
    trained = sum(line["num_target_tokens"] for line in records_of(folder, "step"))
    own = [turn for episode in episodes for turn in episode.turns if turn.policy == "policy"]
    assert 0 < trained <= sum(turn.num_tokens for turn in own)
    assert all(turn.word_logprob is None for episode in episodes for turn in episode.turns if turn.policy != "policy")
    league = json.loads((folder / "league.json").read_text())
    assert {name.rpartition("@")[0] for row in league["games"] for name in (row["attacker"], row["defender"])} == {
        "policy",
        "scripted",
        served,
    }


def test_training_against_a_silent_endpoint_never_starts(tmp_path: Path, tiny_model: Path, words: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        far = f"http://127.0.0.1:{closed.getsockname()[1]}/v1#tiny"
        config = tiny_run(tiny_model, words, league={"fixed": [{"model": far, "share": 0.4}]})
        with pytest.raises(ModelError, match="no player there"):
            run_training(config, tmp_path / "run", quiet())
    assert not (tmp_path / "run").exists()
