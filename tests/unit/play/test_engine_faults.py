"""Why an engine did not start. The files of golden/vllm_output are what vLLM 0.32 printed on a CPU, shortened."""

from pathlib import Path
from typing import Any

import pytest

from cluster.rollout import engine_actor
from cluster.rollout.engine_faults import EngineLog, start_fault
from spag_ray.config.engine import EngineConfig
from spag_ray.errors import EngineError, EngineGoneError

ROOT = Path(__file__).resolve().parents[3]
POINTER = "vLLM cannot load tiny: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def printed(name: str) -> str:
    return (ROOT / "tests" / "golden" / "vllm_output" / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("output", "cause", "keys"),
    [
        ("cache_too_small", "the estimated maximum model length is 160;", ["kv_cache_gib", "max_model_len"]),
        ("too_little_memory", "Available memory on node 0 (5.86/9.96 GiB) on kv cache", ["kv_cache_gib"]),
        ("too_few_numa_nodes", "Not enough allowed NUMA nodes", ["tensor_parallel_size"]),
    ],
)
def test_the_cause_is_the_cores_and_the_keys_are_this_configurations(output: str, cause: str, keys: list[str]) -> None:
    told = start_fault(POINTER, printed(output), on_gpu=False)
    assert cause in told
    assert "root cause" not in told
    assert "gpu_memory_utilization" not in told, "this is a CPU"
    for key in keys:
        assert f"engine.{key}" in told.split(";")[-1]
        assert key in EngineConfig.model_fields
    assert "\n" not in told


# In the words of vllm/v1/worker/utils.py, request_memory, and of torch.
ON_GPU = (
    "Free memory on device cuda:0 (10.21/79.11 GiB) on startup is less than desired GPU memory utilization (0.85, "
    "67.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB.",
)


@pytest.mark.parametrize("cause", ON_GPU)
@pytest.mark.parametrize("who", ["EngineCore", "Worker_TP1"])
def test_too_little_memory_of_a_gpu_names_its_key(cause: str, who: str) -> None:
    lines = [
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "    f()",
    ]
    head = f"\x1b[0;36m({who} pid=7)\x1b[0;0m ERROR 11-26 13:32:04 [core.py:1510] "
    output = "\n".join([*(head + line for line in lines), f"{head}ValueError: {cause}"])
    told = start_fault(POINTER, output, on_gpu=True)
    assert told.startswith("vLLM cannot load tiny: " + cause.split(". ")[0].split(" (")[0])
    assert "engine.gpu_memory_utilization" in told.split(";")[-1]
    assert "Decrease" not in told


def test_without_output_the_error_speaks_for_itself() -> None:
    assert start_fault(POINTER, "", on_gpu=True) == POINTER
    killed = POINTER.replace("{}", "{'EngineCore': -9}")
    assert "its process was killed" in start_fault(killed, "", on_gpu=False)
    assert "engine.kv_cache_gib" in start_fault(killed, "", on_gpu=False)


def test_an_engine_that_is_gone_does_not_lack_memory_because_we_ask_whether_it_did() -> None:
    told = "the process of spag-1 has ended (was it out of memory?)"
    assert start_fault(told, "", on_gpu=True) == told


@pytest.mark.parametrize("kind", [EngineError, EngineGoneError])
async def test_an_engine_that_does_not_start_stays_the_fault_that_it_was(
    kind: type[EngineError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise kind("its process has ended")

    monkeypatch.setattr(engine_actor, "start_engine", fail)
    log = tmp_path / "engine-policy-0.log"
    log.touch()
    actor = engine_actor.EngineActor.__new__(engine_actor.EngineActor)
    actor._log = EngineLog(log)
    with pytest.raises(EngineError, match=r"has ended; the whole trace is in .*policy-0\.log") as caught:
        await actor.start("tiny", EngineConfig(), "spag-1", 0, 0)
    assert type(caught.value) is kind


def test_an_error_that_vllm_raises_itself_names_its_key_too() -> None:
    told = (
        "vLLM cannot load tiny: User-specified max_model_len (4096) is greater than the derived max_model_len (1024). "
    )
    told = start_fault(f"{told}To allow overriding this maximum, set the env var ...", "", on_gpu=True)
    assert told.endswith("derived max_model_len (1024); lower engine.max_model_len")


def test_only_what_this_start_printed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "engine-policy-0.log"
    path.write_text(printed("cache_too_small"))
    log = EngineLog(path)
    with path.open("a") as file:
        file.write("something else\n")
    assert log.text() == "something else\n"
