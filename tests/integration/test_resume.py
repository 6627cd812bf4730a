"""An interrupted run resumes and reaches the same result."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from safetensors.numpy import load_file

from cluster.commands.train import run_training
from cluster.launch.placed_run import every_words, placed_run
from cluster.run.checkpoint import Checkpoints
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.loading import to_yaml
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log, segments
from tests.support.runs import begun, drawn_by_tensorboard, quiet, records_of, steps_of, tiny_run, told_to_stop
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("local_ray")


def run_until(config: RunConfig, folder: Path, is_time: Callable[[Path], bool]) -> None:
    """A run whose Run actor, and with it everything, is killed when it is time."""
    make_run_folder(folder, config)
    words, held_out = every_words(config, {})
    with placed_run(config, folder, config.model, words, held_out, {}) as run:
        training = run.train.remote()
        while not is_time(folder):
            assert not ray.wait([training], timeout=0.02)[0], ray.get(training)
        ray.kill(run)
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(training)
    wait_until(lambda: not ray.util.list_named_actors(), 30, "what a Run owns ends with it")


def games_in(name: str, count: int) -> Callable[[Path], bool]:
    def is_time(folder: Path) -> bool:
        path = folder / "episodes" / f"{name}.log"
        return bool(segments(path)) and sum(1 for _ in read_log(path)) >= count

    return is_time


def steps_in(stage: str, count: int) -> Callable[[Path], bool]:
    def is_time(folder: Path) -> bool:
        metrics = folder / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        return sum(f'"stage": "{stage}"' in line and '"kind": "step"' in line for line in lines) >= count

    return is_time


@pytest.fixture(scope="module")
def greedy(tiny_model: Path, words: Path, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """Float32, one sequence at a time, trained in game order: the same weights whenever it is run."""
    folder = tmp_path_factory.mktemp("greedy")
    learnable = every_words(tiny_run(tiny_model, words), {})[0]["taboo"][0]
    games = [
        {"history": [{"role": "attacker", "content": "water"}, {"role": "defender", "content": reply}],
         "target_word": learnable, "max_turns": 2}
        for reply in (f"a {learnable} ?", f"i know the word ! it is {learnable}")
    ]  # fmt: skip
    expert = folder / "expert.json"
    expert.write_text(json.dumps(games * 16))
    return tiny_run(
        tiny_model,
        words,
        imitation={"source": str(expert), "batch_games": 2, "learning_rate": 5e-3},
        engine={"kind": "transformers", "num_cpus": 0.5},
        sampling={"temperature": 0.0, "max_new_tokens": 8},
        self_play={"rounds": 2, "games_per_round": 8, "games_in_flight": 1, "batch_games": 2},
        objective={"baseline": "moving", "kl_reference": "start"},
        evaluation={"games": 2, "against": ["base"]},
        checkpoint={"every_s": 0.001, "keep_last": 1000},  # one for every step
    )


@pytest.fixture(scope="module")
def uninterrupted(greedy: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    run_training(greedy, folder, quiet())
    return folder


@pytest.mark.parallel
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "is_time",
    [
        pytest.param(steps_in("imitated", 3), id="imitating", marks=pytest.mark.long),
        pytest.param(games_in("spag-1", 3), id="playing", marks=pytest.mark.long),
        pytest.param(games_in("match-spag-1@base", 1), id="meeting-a-frozen-opponent", marks=pytest.mark.long),
        pytest.param(steps_in("spag-2", 1), id="learning"),
        pytest.param(games_in("match-spag-2@imitated", 1), id="comparing", marks=pytest.mark.long),
    ],
)
def test_a_greedy_run_that_was_cut_ends_with_the_weights_of_one_that_was_not(
    is_time: Callable[[Path], bool], greedy: RunConfig, uninterrupted: Path, tmp_path: Path
) -> None:
    run_until(greedy, tmp_path / "run", is_time)
    run_training(greedy, tmp_path / "run", quiet(), resume=True)
    came_to_the_same_end(tmp_path / "run", uninterrupted)


@pytest.mark.long
@pytest.mark.parametrize("newest", ["imitated-step-5", "spag-1-step-2"])
def test_a_run_resumes_mid_stage(newest: str, greedy: RunConfig, uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    order = order_of(folder / "checkpoints" / newest)
    for path in (folder / "checkpoints").iterdir():
        if order_of(path) > order:
            shutil.rmtree(path)
    run_training(greedy, folder, quiet(), resume=True)
    came_to_the_same_end(folder, uninterrupted)
    before, after = ([(step["stage"], step["step"]) for step in steps_of(f)] for f in (uninterrupted, folder))
    stage, number = newest.split("-step-")
    done = next(place for place, step in enumerate(before, 1) if step == (stage, int(number)))
    assert after[len(before) :] == before[done:], "the steps that were behind it are not made again"


@pytest.mark.long  # resumed twice
def test_a_stages_model_that_was_not_written_whole_is_written_from_its_checkpoint(
    greedy: RunConfig, uninterrupted: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    (folder / "models" / "spag-2" / "tokenizer_config.json").unlink()  # the file that is written last
    (folder / "models" / "spag-2" / "model.safetensors").write_bytes(b"half")
    run_training(greedy, folder, quiet(), resume=True)
    came_to_the_same_end(folder, uninterrupted)
    assert steps_of(folder) == steps_of(uninterrupted), "nothing is trained again"


def order_of(checkpoint: Path) -> int:
    order: int = json.loads((checkpoint / "state.json").read_text())["order"]
    return order


def came_to_the_same_end(folder: Path, uninterrupted: Path) -> None:
    for stage in ("imitated", "spag-1", "spag-2"):
        ours, theirs = (load_file(f / "models" / stage / "model.safetensors") for f in (folder, uninterrupted))
        assert ours.keys() == theirs.keys(), stage
        assert all((ours[name] == theirs[name]).all() for name in ours), stage
    for log in sorted((uninterrupted / "episodes").glob("*.log")):
        our_games, their_games = (
            [said(episode) for episode in read_log(f / "episodes" / log.name)] for f in (folder, uninterrupted)
        )
        assert sorted(our_games) == sorted(their_games), f"{log.name}: every game once, and the same"
    drawn, drawn_there = (drawn_by_tensorboard(f) for f in (folder, uninterrupted))
    for name in ("step/loss/imitation", "step/loss/self_play"):
        assert dict(drawn[name]) == pytest.approx(dict(drawn_there[name])), f"{name}: every step once, and the same"
    for name, points in drawn.items():
        assert [x for x, _ in points] == sorted({x for x, _ in points}), name
    assert json.loads((folder / "matches.json").read_text()) == json.loads((uninterrupted / "matches.json").read_text())
    versions = [line["version"] for line in records_of(folder, "sync")]
    assert versions == sorted(set(versions)), "published versions only rise"


def said(episode: Any) -> tuple[Any, ...]:
    return episode.number, episode.scenario, *(turn.text for turn in episode.turns), str(episode.verdict.outcome)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stream_that_was_cut_learns_every_episode_once(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(
        tiny_model,
        words,
        schedule="stream",
        stream={"games_per_version": 8, "max_lag": 3},
        imitation={"source": "scripted", "enabled": False},
        engine={"kind": "transformers"},
        self_play={"rounds": 1, "games_per_round": 96, "games_in_flight": 8},
        checkpoint={"every_versions": 3},
        evaluation={"games": 0},
        objective={"learn_from": "both"},
    )
    folder = tmp_path / "run"
    run_until(config, folder, lambda f: steps_in("spag-1", 10)(f))
    learned_before = records_of(folder, "stream")
    run_training(config, folder, quiet(), resume=True)
    (resumed,) = records_of(folder, "resumed")
    assert resumed["checkpoint"].startswith("version-")
    batches = records_of(folder, "stream")[len(learned_before) :]
    first = int(resumed["checkpoint"].removeprefix("version-"))
    assert len(batches) == 12 - first, "it resumed from the checkpoint"
    versions = [line["version"] for line in records_of(folder, "sync")]
    assert versions == sorted(set(versions))
    episodes = list(read_log(folder / "episodes" / "stream.log"))
    numbers = sorted(episode.number for episode in episodes)
    assert len(numbers) == len(set(numbers)), "no game is lost, none is there twice"
    assert numbers[:96] == list(range(96)), "no game is lost, none is there twice"
    lags = {int(key[4:]): batches[-1][key] for key in batches[-1] if key.startswith("lag_")}
    assert max(lags) <= 3, "counted in both attempts"
    assert sum(lags.values()) == 96, "counted in both attempts"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("schedule", ["stream", "rounds"])
def test_a_notice_to_stop_ends_a_process_in_time(schedule: str, tiny_model: Path, words: Path, tmp_path: Path) -> None:
    length = {"stream": {"rounds": 1, "games_per_round": 4000}, "rounds": {"rounds": 200, "games_per_round": 16}}
    config = tiny_run(
        tiny_model,
        words,
        schedule=schedule,
        stream={"games_per_version": 8, "max_lag": 3},
        imitation={"enabled": False},
        engine={"kind": "transformers"},
        objective={"learn_from": "both"},
        self_play=length[schedule],
        checkpoint={"every_versions": 1000},
        evaluation={"games": 0},
    )
    file, folder = tmp_path / "config.yaml", tmp_path / "run"
    file.write_text(to_yaml(config))
    with begun(file, folder, num_syncs=3) as process:
        output = told_to_stop(process)
    assert "asked to stop" in output, output
    assert f"--run-dir {folder} --resume" in " ".join(output.split()), output
    found = Checkpoints(folder, config.checkpoint).newest()
    assert found is not None
    learned = max(line["version"] for line in records_of(folder, "sync"))
    if schedule == "stream":
        assert found[1].parts >= learned - 1 > 0, "it fitted into the time, so it was saved"
    else:
        assert found[1].rounds >= learned - 1, "games that were played since are in the log"


@pytest.mark.long  # two minutes
@pytest.mark.timeout(300)
def test_ctrl_c_mid_stage_loses_no_step_a_second_ends_at_once(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers"},
        imitation={"games": 2000, "batch_games": 2},
        self_play={"rounds": 0},
        evaluation={"games": 0},
    )
    file, folder = tmp_path / "config.yaml", tmp_path / "run"
    file.write_text(to_yaml(config))

    def interrupt(process: subprocess.Popen[str], num_steps: int) -> None:
        deadline = time.monotonic() + 120
        while len(steps_of(folder)) < num_steps:
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to every process of the group

    with begun(file, folder, 0) as process:
        interrupt(process, 5)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "asked to stop: saves a checkpoint" in output
    assert "--resume --run-dir" in " ".join(output.split()) or f"--run-dir {folder} --resume" in output, output
    found = Checkpoints(folder, config.checkpoint).newest()
    assert found is not None
    num_steps = len(steps_of(folder))
    assert found[0].name == f"imitated-step-{num_steps}", "the last step that was made is saved"

    with begun(file, folder, 0, "--resume") as process:
        interrupt(process, num_steps + 2)
        time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        told = time.monotonic()
        process.communicate(timeout=60)
        assert time.monotonic() - told < 20
    (resumed,) = records_of(folder, "resumed")
    assert resumed["checkpoint"] == found[0].name
    assert [line["step"] for line in steps_of(folder)][: num_steps + 1] == list(range(1, num_steps + 2))


@pytest.mark.long  # a whole process, twice
@pytest.mark.timeout(400)
def test_a_killed_driver_leaves_nothing_and_another_goes_on(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(
        tiny_model,
        words,
        schedule="stream",
        stream={"games_per_version": 8, "max_lag": 3},
        imitation={"enabled": False},
        objective={"learn_from": "both"},
        self_play={"rounds": 1, "games_per_round": 4000},
        checkpoint={"every_versions": 2},
        evaluation={"games": 0},
    )
    file, folder = tmp_path / "config.yaml", tmp_path / "run"
    file.write_text(to_yaml(config))
    with begun(file, folder, num_syncs=5) as process:
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("VLLM" in child.name() or "EngineCore" in child.name() for child in children), "a real engine runs"
        names = {child: name_of(child) for child in children}
        process.kill()
    ours = [child for child in children if "Agent" not in names[child]]
    _, left = psutil.wait_procs(ours, timeout=40)
    assert [child.name() for child in left] == []
    for child in set(children) - set(ours):  # Ray's agents notice late that they are alone
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    num_syncs = len(records_of(folder, "sync"))
    with begun(file, folder, num_syncs + 3, "--resume") as process:
        told_to_stop(process)
    (resumed,) = records_of(folder, "resumed")
    versions = [line["version"] for line in records_of(folder, "sync")]
    assert versions == sorted(set(versions))
    assert resumed["version"] >= versions[num_syncs - 1]


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""
