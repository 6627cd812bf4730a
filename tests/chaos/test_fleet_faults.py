"""What happens to engines at the same time as something else happens to them; nothing is lost."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from cluster.launch.placed_run import placed_run
from cluster.run.run import SESSIONS
from cluster.runtime.ray_session import node_of
from cluster.runtime.run_folder import make_run_folder
from spag_ray.episodes.log import read_log
from spag_ray.games.taboo.decks import load_deck
from tests.support.draining import drain, nodes_of_one_cpu
from tests.support.faults import kill_engine
from tests.support.runs import colocated_run, records_of, stream_run
from tests.support.tiny_model import TARGETS


def play(folder: Path, config: Any, meanwhile: Callable[[Any], bool]) -> None:
    """Run to the end; `meanwhile` is called with the Run's handle again and again, until it returns True."""
    targets = list(TARGETS)
    is_done = False
    with placed_run(
        config, folder, config.model, {"taboo": targets[2:]}, {"taboo": targets[:2]}, load_deck("everyday")
    ) as run:
        training = run.train.remote()
        while not ray.wait([training], timeout=0.05)[0]:
            is_done = is_done or ((folder / "metrics.jsonl").exists() and meanwhile(run))
        ray.get(training)
    newest = [
        f"{line['engine']}: {line['before']} -> {line['state']}: {line['reason']}"
        for line in records_of(folder, "engine_state")
    ][-8:]
    assert is_done, f"the run was over before everything had happened; engines last: {newest}"


def states(folder: Path, state: str, reason: str = "") -> list[dict[str, Any]]:
    lines = records_of(folder, "engine_state")
    return [line for line in lines if line["state"] == state and reason in line["reason"]]


def check_games(folder: Path, log: str) -> None:
    numbers = [episode.number for episode in read_log(folder / "episodes" / log)]
    assert len(numbers) == len(set(numbers)), "every game is in the log once"


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("local_ray")
def test_a_replacement_under_way_when_the_engines_go_to_sleep(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """Colocated: it is stopped, no restart is counted for that, and it starts again when the others wake."""
    config = colocated_run(tiny_model, words, 6, batch_games=4)
    folder = make_run_folder(tmp_path / "run", config)
    killed: list[int] = []

    def kill_while_they_play(run: Any) -> bool:
        stage = len([log for log in (folder / "episodes").glob("spag-*.log") if log.stat().st_size])
        if stage in (1, 3) and stage not in killed and kill_engine(f"engine-policy-{len(killed)}"):
            killed.append(stage)
        return len(killed) >= 2

    play(folder, config, kill_while_they_play)
    restarted, asleep = records_of(folder, "restart"), states(folder, "lost", "sleep")
    print(f"\n{len(killed)} engines killed, {len(restarted)} restarts; stopped by sleep: {asleep}")
    assert len(restarted) == len(killed), "only what was killed has failed"
    assert records_of(folder, "checkpoint")[-1]["name"] == "spag-6"
    for number in range(1, 7):
        check_games(folder, f"spag-{number}.log")


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("local_ray")
def test_engines_leave_while_new_weights_wait_for_their_games(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """A drain beside a drain, four times: each engine leaves, and none is opened again."""
    config = stream_run(
        tiny_model,
        words,
        120,
        engine={"kind": "transformers", "num_engines": 1, "max_num_seqs": 4},
        sync={"update": "between_games"},
    )
    folder = make_run_folder(tmp_path / "run", config)
    calls: list[Any] = []

    def come_and_go(run: Any) -> bool:
        fleet, (policy,) = run._parts.fleet, run._parts.policies
        name = fleet.add(policy, is_extra=True)
        record = next(each for each in fleet.roster.records if each.name == name)
        deadline = time.monotonic() + 60
        while record.state != "draining":  # a sync waits for its games
            assert time.monotonic() < deadline
            time.sleep(0.001)
        left: bool = fleet.retire(record, "fewer are needed")
        return left

    def four_times(run: Any) -> bool:
        if calls and ray.wait(calls[-1:], timeout=0)[0]:
            assert ray.get(calls[-1]), "it left by this call"
            if len(calls) == 4:
                return True
        if not calls or ray.wait(calls[-1:], timeout=0)[0]:
            calls.append(run.__ray_call__.options(concurrency_group=SESSIONS).remote(come_and_go))
        return False

    play(folder, config, four_times)
    left = [line["engine"] for line in records_of(folder, "engine_left")]
    assert left == [f"engine-policy-added-{number}" for number in range(1, 5)], "each left once"
    assert not records_of(folder, "restart")
    check_games(folder, "stream.log")


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    with nodes_of_one_cpu(3) as cluster:
        yield cluster


@pytest.mark.timeout(900)
def test_a_node_that_is_drained_while_its_engine_gets_new_weights(
    nodes: Cluster, tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    """The engine leaves, and another one takes its slot when the node is gone."""
    config = stream_run(
        tiny_model,
        words,
        400,  # on a fast machine 200 are over before the next engine has come
        engine={"kind": "transformers", "num_cpus": 0.6, "num_engines": 2},
        learner={"num_cpus": 0.6},
        sync={"update": "between_games"},
    )
    folder = make_run_folder(tmp_path / "run", config)
    drained: dict[str, float] = {}
    left_by_drain: list[str] = []

    def drain_during_a_sync(run: Any) -> bool:
        if drained:
            (node,) = drained
            if time.monotonic() - drained[node] > 5 and any(each.node_id == node for each in nodes.worker_nodes):
                gone = next(each for each in nodes.worker_nodes if each.node_id == node)
                nodes.remove_node(gone, allow_graceful=False)
                nodes.add_node(num_cpus=1)
            return bool(records_of(folder, "engine_joined"))
        if len(states(folder, "draining")) > 3:
            engines = {name: node_of(ray.get_actor(f"{name}-run")) for name in ("engine-policy-0", "engine-policy-1")}
            assert node_of(run) == nodes.head_node.node_id, "where it was started: it ends with its node"
            leaving, node = next(each for each in engines.items() if each[1])
            drain(nodes, node)
            drained[node] = time.monotonic()
            left_by_drain.append(leaving)
        return False

    play(folder, config, drain_during_a_sync)
    (left,) = records_of(folder, "engine_left")
    assert [left["engine"]] == left_by_drain
    assert [line["engine"] for line in records_of(folder, "engine_joined")] == [f"{left['engine']}.2"]
    # Arenas and the buffer need no CPU: Ray may have put them on the node that is gone.
    restarted = {line["what"] for line in records_of(folder, "restart")}
    assert restarted <= {"arena-0", "buffer"}, "no engine and no learner was lost"
    check_games(folder, "stream.log")


def kill_in_the_middle(learner: Any, is_joint: bool) -> None:
    """In the learner's process: an engine is killed after the first bucket of the next version. `is_joint`: the channel
    is broken by that, as one is in which all engines take part in each call."""
    from spag_ray.channels import shared_memory

    whole = shared_memory.in_shared_memory

    def breaks(sender: Any) -> bool:
        sender._is_broken.set()
        return True

    if is_joint:
        shared_memory._Sender.abort = breaks  # type: ignore[assignment, method-assign]

    @contextlib.contextmanager
    def deadly(bucket: Any) -> Iterator[Any]:
        if bucket.index == 1:
            shared_memory.in_shared_memory = whole
            raylet = psutil.Process().parent()
            assert raylet is not None
            of_ray = raylet.children()
            next(each for each in of_ray if each.name().startswith("ray::EngineActor")).kill()
        with whole(bucket) as update:
            yield update

    shared_memory.in_shared_memory = deadly


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("is_joint", [False, True], ids=["each_by_itself", "all_in_one_call"])
def test_an_engine_is_lost_amid_its_weights(tiny_model: Path, words: Path, tmp_path: Path, is_joint: bool) -> None:
    """The other engine gets the whole version, and the lost one's successor the version that is played then. If the
    channel broke, the other one gets the version by the object store, and the next one by a new channel."""
    config = stream_run(tiny_model, words, 400, learner={"bucket_bytes": 4096}, sync={"channel": "shared_memory"})
    folder = make_run_folder(tmp_path / "run", config)
    calls: list[Any] = []

    def three_times(run: Any) -> bool:
        num_joined = len(records_of(folder, "engine_joined"))
        if num_joined == len(calls) < 3 and len(records_of(folder, "sync")) > 3:
            calls.append(ray.get_actor("learner-run-0").__ray_call__.remote(kill_in_the_middle, is_joint))
        return num_joined == 3

    play(folder, config, three_times)
    ray.get(calls)
    restarted = [line["what"] for line in records_of(folder, "restart")]
    print(f"\nlost in the middle of their weights: {restarted}")
    assert len(restarted) == 3
    syncs = records_of(folder, "sync")
    assert [line["version"] for line in syncs] == list(range(1, len(syncs) + 1))
    assert max(line["probe_gap_mean"] for line in syncs) < 1e-3, "no engine plays with half a version"
    broken = [line["version"] for line in syncs if line["broken_channels"]]
    print(f"the channel broke in versions {broken} of {len(syncs)}")
    assert len(broken) == (3 if is_joint else 0)
    check_games(folder, "stream.log")
