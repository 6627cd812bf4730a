"""One contract, every channel: what a run may expect of it. NCCL and CUDA are recorded fakes; see support/channels.py.

A toy channel is registered here as any new one is, with a line, and kept to the same contract.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.learning import direct_channel
from learners.export import Exporter
from spag_ray.channels import nccl
from spag_ray.channels.base import CHANNELS, Entry
from spag_ray.channels.buckets import in_shared_memory
from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError, WeightSyncError
from tests.support.channels import Fleet, LocalHandle, NcclNet, use_local_ray, without_cuda
from tests.support.exporting import exporter_of
from tests.support.policies import snapshot_of

pytestmark = pytest.mark.filterwarnings("ignore:Tensor '.*' has size")  # as nccl.py does
TOY = Entry("tests.support.toy_channel", "in a file")
NAMES = [*CHANNELS, "toy"]
DIRECT = [name for name in NAMES if name == "toy" or CHANNELS[name].is_direct]
BUCKET_BYTES = 1000  # below the largest tensor
TIMEOUT_S = 2.0


@pytest.fixture(autouse=True)
def net(monkeypatch: pytest.MonkeyPatch) -> Iterator[NcclNet]:
    monkeypatch.setitem(CHANNELS, "toy", TOY)
    use_local_ray(monkeypatch)
    monkeypatch.setattr(nccl, "_GRACE_S", 1.0)
    monkeypatch.setattr(direct_channel, "AFTER_A_LOSS_S", 0.5)
    net = without_cuda(monkeypatch)
    yield net
    net.close()


@pytest.fixture
def exporter(tiny_model: Path) -> Exporter:
    return exporter_of(tiny_model, BUCKET_BYTES)


@contextlib.contextmanager
def fleet_of(channel: str, exporter: Exporter, num_engines: int = 2) -> Iterator[tuple[Fleet, list[LocalHandle]]]:
    fleet = Fleet(exporter, channel, BUCKET_BYTES, TIMEOUT_S)
    handles = [fleet.add() for _ in range(num_engines)]
    try:
        yield fleet, handles
    finally:
        fleet.close()


def learn(exporter: Exporter) -> None:
    """Change the learner's weights."""
    for parameters, _ in exporter._weights.values():
        for parameter in parameters:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)


def check_plays(handle: LocalHandle, exporter: Exporter, version: int) -> None:
    """The engine has the learner's weights, is stamped with their version, plays, and is watched."""
    assert handle.model.has(exporter.each())
    assert (handle.policy.version, handle.llm.weight_version) == (version, str(version))
    assert not handle.llm.is_paused_now
    assert handle.heartbeat_now() == (3, 9.0), "its stalls are seen"


@pytest.mark.parametrize("channel", NAMES)
def test_every_engine_plays_each_version_as_the_learner_has_it(channel: str, exporter: Exporter) -> None:
    """There are tensors larger than a bucket, layers fused of several tensors, and a head tied to the embedding."""
    assert max(exporter._sizes.values()) > BUCKET_BYTES
    assert exporter.num_buckets > 2
    with fleet_of(channel, exporter) as (fleet, handles):
        for version in (1, 2, 3):
            learn(exporter)
            report, lost = fleet.publish(version)
            assert (report.version, report.num_engines, report.broken_channels, lost) == (version, 2, 0, {})
            assert report.num_bytes == exporter.num_bytes
            for handle in handles:
                check_plays(handle, exporter, version)


@pytest.mark.parametrize("channel", NAMES)
def test_an_engine_that_comes_later_takes_part_from_the_next_version_on(channel: str, exporter: Exporter) -> None:
    with fleet_of(channel, exporter) as (fleet, handles):
        fleet.publish(1)
        learn(exporter)
        handles.append(fleet.add())
        assert fleet.publish(2)[1] == {}
        for handle in handles:
            check_plays(handle, exporter, 2)


@pytest.mark.parametrize("channel", NAMES)
def test_every_engine_loads_saved_weights_before_and_after_its_channel_is_open(
    channel: str, exporter: Exporter, tiny_model: Path, other_tiny_model: Path
) -> None:
    saved = {"tiny": exporter, "other": exporter_of(other_tiny_model, BUCKET_BYTES)}
    with fleet_of(channel, exporter, 1) as (fleet, (handle,)):
        fleet.run(handle.policy.load(snapshot_of(other_tiny_model, version=5)))
        check_plays(handle, saved["other"], 5)
        learn(exporter)
        fleet.publish(6)
        check_plays(handle, exporter, 6)
        fleet.run(handle.policy.load(snapshot_of(other_tiny_model, version=5)))
        check_plays(handle, saved["other"], 5)
        fleet.publish(7)
        check_plays(handle, exporter, 7)


@pytest.mark.parametrize("channel", NAMES)
def test_turns_in_progress_may_end_before_the_bound_of_a_call_counts(channel: str, exporter: Exporter) -> None:
    fleet = Fleet(exporter, channel, BUCKET_BYTES, timeout_s=0.5)
    try:
        handle = fleet.add()
        handle.llm.turns_s = 0.7
        assert fleet.publish(1)[1] == {}
        check_plays(handle, exporter, 1)
    finally:
        fleet.close()


CALLS = ("open_channel", "begin_update", "take_update", "end_update")


@pytest.mark.parametrize("fate", ["dies_at", "hangs_at"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("channel", DIRECT)
def test_an_engine_is_lost_and_the_others_play_in_time(channel: str, call: str, fate: str, exporter: Exporter) -> None:
    """Also where all wait for the lost one: then the version comes to those that are left another way."""
    with fleet_of(channel, exporter, 3) as (fleet, handles):
        if call != "open_channel":
            fleet.publish(1)
        learn(exporter)
        setattr(handles[1], fate, call)
        began = time.monotonic()
        report, lost = fleet.publish(2)
        assert time.monotonic() - began < 4 * TIMEOUT_S
        assert "engine-1" in lost
        assert handles[1].is_killed
        # With NCCL the others are stuck in a call of its own once one has left them there.
        in_nccl = channel == "nccl" and call in ("open_channel", "take_update")
        assert len(fleet.engines) == (0 if in_nccl else 2)
        assert bool(report.broken_channels) == (channel == "nccl" and call != "end_update")
        for engine in fleet.engines:
            found: Any = engine.handle
            check_plays(found, exporter, 2)
        learn(exporter)
        newcomer = fleet.add()
        assert fleet.publish(3)[1] == {}, "the channel works again"
        for engine in fleet.engines:
            found = engine.handle
            check_plays(found, exporter, 3)
        assert newcomer in [engine.handle for engine in fleet.engines]


def test_a_broadcast_ends_soon_after_an_engine_is_known_to_have_died(exporter: Exporter) -> None:
    """The others are stuck in it: they are not waited for until `sync.timeout_s`."""
    fleet = Fleet(exporter, "nccl", BUCKET_BYTES, timeout_s=60.0)
    try:
        handles = [fleet.add() for _ in range(3)]
        fleet.publish(1)
        handles[1].dies_at = "take_update"
        began = time.monotonic()
        report, lost = fleet.publish(2)
        assert time.monotonic() - began < 10
        assert report.broken_channels
        assert len(lost) == 3
    finally:
        fleet.close()


@pytest.mark.parametrize("fate", ["dies_at", "hangs_at"])
def test_a_broadcast_that_an_engine_has_left_is_walked_to_its_end(
    fate: str, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ZeRO-3 the other ranks gather each weight together with this one."""
    passes: list[list[str]] = []
    each = exporter.each

    def watched() -> Iterator[tuple[str, torch.Tensor]]:
        passes.append(walked := [])
        for name, tensor in each():
            walked.append(name)
            yield name, tensor

    with fleet_of("nccl", exporter) as (fleet, handles):
        fleet.publish(1)
        setattr(handles[1], fate, "take_update")
        monkeypatch.setattr(exporter, "each", watched)
        for version in (2, 3):  # the second time there is no group any more
            assert not fleet.learners.send(version).is_sent
            assert list(exporter.shapes()) in passes
            passes.clear()


def test_where_each_engine_is_served_by_itself_nothing_is_given_up(exporter: Exporter) -> None:
    with fleet_of("shared_memory", exporter, 1) as (fleet, _):
        fleet.publish(1)
        assert not fleet.learners._rank._learner.abort_sending()
        assert fleet.learners.send(2).is_sent


@pytest.mark.parametrize("channel", NAMES)
def test_when_every_engine_refuses_the_version_is_at_fault(channel: str, exporter: Exporter) -> None:
    with fleet_of(channel, exporter) as (fleet, handles):
        fleet.publish(1)
        for handle in handles:
            handle.refuses_at = "take_update" if CHANNELS[channel].is_direct else "load"
        with pytest.raises(WeightSyncError, match=r"version 2 was not taken by engine-0: .*do not fit; engine-1"):
            fleet.publish(2)


@pytest.mark.parametrize("channel", DIRECT)
def test_a_version_that_broke_off_leaves_nothing_in_the_next(channel: str, exporter: Exporter) -> None:
    """Some of its buckets had come: their layers do not count as loaded, and their tensors are gone."""
    with fleet_of(channel, exporter, 1) as (fleet, (handle,)):
        fleet.publish(1)
        buckets = fleet.learners.bucket_refs()

        async def broken_off() -> None:
            await handle.actor.begin_update(True)
            for stored in buckets[: len(buckets) // 2]:
                with in_shared_memory(await stored) as update:
                    await handle.actor.take_update(update)

        fleet.run(broken_off())
        assert handle.heartbeat_now() == (3, 0.0), "while it loads weights, its turns wait and none is late"
        learn(exporter)
        fleet.publish(2)
        check_plays(handle, exporter, 2)


@pytest.mark.parametrize("channel", ["object_store", "shared_memory"])
def test_damaged_bytes_are_refused_on_a_host(channel: str, exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet_of(channel, exporter) as (fleet, handles):
        fleet.publish(1)
        for module in ("learners.export", "spag_ray.channels.buckets"):
            monkeypatch.setattr(f"{module}.checksum", lambda payload: "0" * 16)
        with pytest.raises(WeightSyncError, match=r"bucket 0 of a weight snapshot arrived damaged"):
            fleet.publish(2)
        assert all(handle.is_killed for handle in handles)
        assert {handle.policy.version for handle in handles} == {1}


@pytest.mark.parametrize("channel", NAMES)
def test_adapters_travel_where_engines_fetch(channel: str) -> None:
    on_gpus = {"num_gpus": 0.5 if CHANNELS[channel].gpus == "colocated" else 1}
    settings: dict[str, Any] = {"sync": {"channel": channel}, "engine": on_gpus, "learner": on_gpus}
    settings["placement"] = CHANNELS[channel].gpus or "separate"
    parse_config(settings)
    settings["learner"] = {**on_gpus, "lora": {"export": "adapter"}}
    if not CHANNELS[channel].is_direct:
        parse_config(settings)
        return
    with pytest.raises(ConfigError, match="sends adapters, which travel by the object store"):
        parse_config(settings)


@pytest.mark.parametrize("channel", DIRECT)
def test_a_newcomer_that_refuses_the_channel_does_not_harm_the_next_version(channel: str, exporter: Exporter) -> None:
    with fleet_of(channel, exporter) as (fleet, handles):
        fleet.publish(1)
        newcomer = fleet.add()
        newcomer.refuses_at = "open_channel"
        others, fleet.engines = fleet.engines[:2], fleet.engines[2:]
        with pytest.raises(WeightSyncError):
            fleet.publish(1)  # to it alone, as a run admits one
        fleet.engines = others
        learn(exporter)
        assert fleet.publish(2)[1] == {}
        for handle in handles:
            check_plays(handle, exporter, 2)
