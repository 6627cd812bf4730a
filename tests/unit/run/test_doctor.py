"""`spag-ray doctor`: what it finds, from what Ray and its nodes say."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cluster.checks import cluster_checks, node_report
from cluster.checks.check_results import (
    CheckResult,
    disk_checks,
    folder_check,
    gpu_checks,
    host_memory_checks,
    memory_checks,
    object_store_checks,
    path_checks,
    report_checks,
    version_check,
)
from cluster.checks.cluster_checks import read_by_actors
from cluster.checks.node_report import NodeReport, Wanted, look
from cluster.commands import doctor
from cluster.planning.model_size import ModelSize
from cluster.types import Node, NodeResources
from spag_ray.config.loading import load_config, parse_config
from spag_ray.config.run import RunConfig
from spag_ray.games.kuhn import KuhnPoker
from tests.support.runs import tiny_run

HERE = NodeReport("here", {"torch": "2.13.0", "cuda": ""}, {}, True, (), "", 2**34, 2**30, None)


def statuses(results: Any) -> list[str]:
    return [result.status for result in results]


def test_a_machine_reports_what_it_reads_and_what_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"12345")
    (tmp_path / "token").write_text("abc")
    paths = (str(tmp_path / "model"), str(tmp_path / "absent"))
    report = look("here", Wanted(paths, (str(tmp_path / "token"), "abc")))
    assert report.path_bytes == {paths[0]: 5, paths[1]: None}
    assert report.sees_token
    assert report.port_fault is None
    assert report.versions["torch"]
    assert report.memory_bytes > 2**28
    assert report.shared_memory_bytes > 0
    other = look("here", Wanted((), (str(tmp_path / "token"), "another")), host="203.0.113.7")
    assert not other.sees_token
    assert other.port_fault


def test_a_disk_without_room_for_a_new_run_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, size = RunConfig(), ModelSize(2**30, "a test")
    assert list(disk_checks(config, size, tmp_path)) == [], "its files may be there already"
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**30))
    small = ModelSize(2**10, "a test")
    assert list(disk_checks(config, small, tmp_path / "a" / "run")) == [], "there is room"
    [result] = disk_checks(config, size, tmp_path / "a" / "run")
    assert (result.check, result.status) == ("disk", "warn")
    assert f"{tmp_path} has 1.0 free; make room, or lower checkpoint.keep_last" in result.text


@pytest.mark.parametrize("error", [ImportError("no\nnltk"), OSError("no\nnltk")])
def test_a_package_that_a_check_cannot_import_is_a_failed_check(
    error: Exception, tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of torch that is not there is an OSError."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    for name in ("check_files", "in_a_process", "check_imports"):
        monkeypatch.setattr(doctor, name, fail)
    config = tiny_run(tiny_model, words, cluster={"object_store_gib": 9000})  # so that no Ray is started
    failed = {result.check: result.text for result in doctor._results(config, tmp_path) if result.status == "fail"}
    assert failed.pop("object store")
    checks = ("files", "imports", "model", "prompts", "saving")
    assert failed == dict.fromkeys(checks, f"{type(error).__name__}: no nltk")


def test_a_games_own_fault_is_not_looked_for_in_a_scenario_that_it_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.py").write_text(
        "from spag_ray.games.kuhn import KuhnPoker\nclass Some(KuhnPoker):\n    is_exhaustive = False\n"
    )
    checked: list[Any] = []
    monkeypatch.setattr(doctor, "in_a_process", lambda check, *given, **_: checked.append(given))
    monkeypatch.setattr(doctor, "check_imports", lambda _: None)
    settings = {"game": {"name": f"{tmp_path}/some.py:Some"}, "words": {"num_held_out": 100}, "prompts": "lines"}
    config = parse_config({**settings, "cluster": {"object_store_gib": 9000}})
    (fault, *_) = doctor._results(config, tmp_path)
    assert "words.num_held_out is 100" in fault.text
    scenarios = [given[2] for given in checked if len(given) == 5]
    assert scenarios == [{config.game.full_name: list(KuhnPoker().scenarios()[:1])}]


def test_what_a_check_says_is_printed_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "/models/[b]/:dog:/x cannot be read"
    monkeypatch.setattr(doctor, "_results", lambda *_: iter([CheckResult("model", "fail", told)]))
    console = Console(width=40, record=True)
    assert not doctor.run_doctor(RunConfig(), tmp_path, console)
    assert console.export_text() == f"fail  model         {told}\n1 check failed\n"


@pytest.mark.usefixtures("checks_here")
def test_a_prompt_file_in_german_is_a_failed_check(
    tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "check_imports", lambda _: None)
    path = tmp_path / "german.yaml"
    path.write_text(
        "style: chat\nclaim: Ich kenne das Wort! Es ist `{word}`!\n"
        "wordings: [{attacker: 'Das Wort ist {target_word}.', defender: 'Sag: Ich kenne das Wort! Es ist `X`!'}]\n"
    )
    broken = {"cluster": {"object_store_gib": 9000}, "prompts": str(path)}  # no Ray is started
    results = {result.check: result for result in doctor._results(tiny_run(tiny_model, words, **broken), tmp_path)}
    assert results["claims"].status == "fail"
    assert "reads English, so no defender could win; write" in results["claims"].text
    assert results["saving"].status == "pass", "the other checks go on"


def test_another_version_on_a_node_is_named_with_both() -> None:
    assert version_check(HERE, [HERE, replace(HERE, node="b")]).status == "pass"
    result = version_check(HERE, [replace(HERE, node="b", versions={"torch": "2.12.0", "cuda": ""})])
    assert result.status == "fail"
    assert "torch is 2.12.0 on b, 2.13.0 here" in result.text
    gone = version_check(HERE, [replace(HERE, node="b", versions={"cuda": ""})])
    assert "torch is missing on b" in gone.text


def test_gpus_without_cuda_fail_and_two_drivers_are_warned_of() -> None:
    blind = replace(HERE, node="b", gpus=(79.0,), gpu_driver="570.1")
    assert "built without CUDA" in version_check(HERE, [blind]).text
    here = replace(HERE, versions={"torch": "2.13.0", "cuda": "13.0"})
    nodes = [replace(here, gpus=(79.0,), gpu_driver=driver) for driver in ("570.1", "560.2")]
    assert version_check(here, nodes).status == "warn"


def test_a_path_has_to_be_there_and_the_same_on_every_node() -> None:
    def found(*sizes: int | None) -> CheckResult:
        reports = [replace(HERE, node=f"node-{index}", path_bytes={"/m": size}) for index, size in enumerate(sizes)]
        (result,) = path_checks(reports)
        return result

    assert found(5, 5).status == "pass"
    assert found(5, None).status == "fail"
    assert "/m cannot be read on node-1" in found(5, None).text
    assert found(5, 6).status == "fail"
    assert "not the same" in found(5, 6).text


def test_a_run_folder_that_a_node_does_not_see_fails() -> None:
    result = folder_check([HERE, replace(HERE, node="b", sees_token=False)], Path("runs/x"))
    assert result.status == "fail"
    assert "not seen from b" in result.text
    assert "--run-dir" in result.text


def test_an_object_store_smaller_than_a_version_is_warned_of() -> None:
    config, size = parse_config({"learner": {"dtype": "bfloat16"}}), ModelSize(2**29, "test")  # 1 GiB

    def found(*stores: int) -> list[CheckResult]:
        resources = [NodeResources(f"node-{index}", 1, 0) for index in range(len(stores))]
        nodes = [Node(each.name, "10.0.0.1", each, store) for each, store in zip(resources, stores, strict=True)]
        return list(object_store_checks(config, size, nodes))

    assert statuses(found(2**30, 2**31)) == ["pass"]
    (result,) = found(2**31, 2**29)
    assert result.status == "warn"
    assert "node-1 has 0.50 GiB" in result.text
    direct = parse_config({"sync": {"channel": "shared_memory"}})
    assert list(object_store_checks(direct, size, [])) == []


GPU_EACH = {"learner": {"num_gpus": 1}, "engine": {"num_gpus": 1}}


def test_little_shared_memory_and_a_small_gpu_fail() -> None:
    config = parse_config(GPU_EACH)
    small = replace(HERE, shared_memory_bytes=2**20)
    (result,) = memory_checks(config, None, [small])
    assert result.status == "fail"
    assert "--shm-size" in result.text
    direct = parse_config({"sync": {"channel": "shared_memory"}})
    (result,) = memory_checks(direct, None, [small])
    assert result.status == "fail", "on this channel, too, buckets lie in shared memory"
    assert config.channel == "nccl"
    (result,) = memory_checks(parse_config({**GPU_EACH, "sync": {"channel": "nccl"}}), None, [small])
    assert result.status == "fail", "what is saved, and a version whose channel broke, come in buckets on every channel"
    size = ModelSize(7 * 10**9, "test")
    for gib, status in ((79.0, "fail"), (135.0, "warn"), (180.0, "pass")):
        assert statuses(memory_checks(config, size, [replace(HERE, gpus=(gib,))])) == [status]
    for gib, is_told in ((22.49, True), (79.0, False)):
        (result,) = memory_checks(config, size, [replace(HERE, gpus=(gib,))])
        assert ("for cluster.gpu_gib 79: set it to 22;" in result.text) == is_told


def test_a_node_with_gpus_needs_a_driver_for_its_cuda_and_a_compiler() -> None:
    with_gpu = replace(HERE, gpus=(79.0,), gpu_driver="580.65.06", versions={"cuda": "13.0"})
    assert list(gpu_checks([with_gpu, replace(HERE, build_faults=("a C compiler",))])) == []
    (old,) = gpu_checks([replace(with_gpu, gpu_driver="570.86.15")])
    assert old.status == "fail"
    assert "driver 570.86.15, but CUDA 13.0 needs 580" in old.text
    assert list(gpu_checks([replace(with_gpu, gpu_driver="570.86.15", versions={"cuda": "12.8"})])) == []
    (bare,) = gpu_checks([replace(with_gpu, build_faults=("a C compiler", "Python 3.11's headers"))])
    assert bare.status == "fail"
    assert "lacks a C compiler and Python 3.11's headers" in bare.text


def test_what_kernels_are_compiled_with_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    compiler, headers = look("here", Wanted()).build_faults
    assert compiler == "a C compiler"
    assert headers.endswith("headers")
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    assert look("here", Wanted()).build_faults == ()


def test_shared_memory_has_to_hold_the_embedding_which_is_never_cut() -> None:
    shape = load_config("colocated_1gpu").model_shape
    assert shape is not None
    config, size = parse_config({"learner": {"dtype": "bfloat16"}}), ModelSize(1_543_714_304, "test", shape)
    embedding = 2 * shape.vocab_size * shape.hidden_size
    for room, status in ((2 * embedding - 1, ["fail"]), (2 * embedding, [])):
        assert statuses(memory_checks(config, size, [replace(HERE, shared_memory_bytes=room)])) == status


def test_a_node_with_less_memory_than_its_processes_need_is_warned_of() -> None:
    config, size = parse_config({"learner": {"num_ranks": 2}}), ModelSize(10**9, "test")
    nodes = [NodeResources("a", 2, 0), NodeResources("b", 1, 0)]
    reports = [replace(HERE, node="a", memory_bytes=2**36), replace(HERE, node="b", memory_bytes=2**32)]
    (result,) = host_memory_checks(config, size, nodes, reports)
    assert result.status == "warn"
    assert "on b, which has 4.0" in result.text
    large = [replace(report, memory_bytes=2**36) for report in reports]
    assert statuses(host_memory_checks(config, size, nodes, large)) == ["pass"]


def test_what_actors_read_is_what_the_configuration_names(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("")
    config = tiny_run(
        tiny_model, words, prompts=str(own), imitation={"source": "/d/games.json", "sft_file": "/d/sft.json"}
    )
    assert set(read_by_actors(config, str(tiny_model))) == {str(tiny_model), "/d/games.json", "/d/sft.json", str(own)}


def test_a_run_on_cpus_does_not_care_what_gpus_the_machine_has(tmp_path: Path) -> None:
    blind = replace(HERE, gpus=(8.0,), gpu_driver="450.1", build_faults=("a C compiler",))
    nodes = [NodeResources(HERE.node, 2, 0)]
    found = list(report_checks(load_config("quickstart"), None, nodes, blind, [blind], tmp_path))
    assert not [each for each in found if each.status == "fail" and each.check in ("versions", "driver", "compiler")]
    found = list(report_checks(parse_config(GPU_EACH), None, nodes, blind, [blind], tmp_path))
    assert {"versions", "compiler"} <= {each.check for each in found if each.status == "fail"}


def test_gpus_that_ray_has_not_are_not_taken_for_the_smallest() -> None:
    config, size = parse_config(GPU_EACH), ModelSize(7 * 10**9, "test")
    report = replace(HERE, gpus=(4.0, 180.0))
    assert statuses(memory_checks(config, size, [report])) == ["fail"]
    assert statuses(memory_checks(config, size, [report], [NodeResources(HERE.node, 8, 1)])) == ["pass"]


def test_a_gpu_whose_memory_the_driver_hides_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '580.65.06, [Unknown Error]'\necho '580.65.06, 81920'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert node_report._gpus() == ("580.65.06", (80.0,))


def test_on_a_cluster_the_doctors_own_machine_is_not_asked_what_it_can_import(
    tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ray_session", lambda _: pytest.fail("no Ray is needed"))
    monkeypatch.setattr(doctor, "check_imports", lambda config: None)
    for cluster, told in (({"object_store_gib": 9000}, True), ({"address": "10.0.0.1:6379"}, False)):
        config = tiny_run(tiny_model, words, cluster=cluster)
        found = doctor._results(config, tmp_path)
        checks = [next(found).check for _ in range(3)]
        assert ("imports" in checks) == told


def test_a_node_on_which_no_port_can_be_bound_passes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_checks, "_answers", lambda host, port: True)
    worker = SimpleNamespace(get_dashboard_url=lambda: "10.0.0.1:8265")
    context = SimpleNamespace(gcs_address="10.0.0.1:6379")
    monkeypatch.setattr(
        cluster_checks,
        "ray",
        SimpleNamespace(_private=SimpleNamespace(worker=worker), get_runtime_context=lambda: context),
    )
    for address in (None, "10.0.0.1:6379"):
        config = parse_config({"cluster": {"address": address}})
        blocked = [HERE, replace(HERE, node="b", port_fault="no such address")]
        texts = [each.text for each in cluster_checks.port_checks(config, blocked)]
        assert "no port can be bound on b (no such address)" in texts[0]
        assert not any("loopback" in text or "on every node" in text for text in texts[1:])
        assert len(list(cluster_checks.port_checks(config, [HERE]))) == 1
