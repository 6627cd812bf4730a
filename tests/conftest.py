"""What all tests share: the mark of their folder, and the fixtures for a tiny model, Ray, and vLLM.

unit/         quick tests of one module or two; none is marked
integration/  several processes, a browser, minutes: marked slow, but for those that mark themselves long
chaos/        marked chaos
fuzz/         programs for libFuzzer, no tests
support/      what tests import; no test module imports another
golden/       recorded data
"""

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.checks_here import make_checks_here
from tests.support.loop import Loop
from tests.support.tiny_model import TARGETS, make_tiny_model

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

settings.register_profile("no deadline", deadline=None)  # on a busy machine any example may take a second
settings.load_profile("no deadline")

TESTS = Path(__file__).resolve().parent
TIERS = {"slow", "long", "chaos"}

_exit_status = 0


@pytest.hookimpl(tryfirst=True)  # before -m selects by these marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and give those that are coroutines the event loop."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.fixturenames += {"loop"} - {*item.fixturenames}
        folder = item.path.relative_to(TESTS).parts[0]
        marks = TIERS & {mark.name for mark in item.iter_markers()}
        if folder == "integration" and not marks:
            item.add_marker(pytest.mark.slow)
        elif folder == "chaos" and not marks:
            item.add_marker(pytest.mark.chaos)
        elif marks and (folder, marks) != ("integration", {"long"}):
            raise pytest.UsageError(f"{item.nodeid} is marked {marks}; its folder says what it is")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in the session's event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    loop: Any = pyfuncitem.funcargs["loop"]
    loop.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_sessionfinish(exitstatus: int) -> None:
    global _exit_status
    _exit_status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Ends the process here: with Ray, vLLM, gloo and torch in one process, the interpreter's own end can crash in the
    threads that they leave, after every test has passed; the exit status is then no word about the tests.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_status)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other_tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape, other weights."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of words to play."""
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(TARGETS) + "\n")
    return path


@pytest.fixture
def checks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preflight's checks are made in this process."""
    make_checks_here(monkeypatch)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One Ray for a file's tests, whose runs are checked in this process. They must leave nothing running in it."""
    import psutil
    import ray

    from cluster.runtime.ray_session import ray_session
    from spag_ray.config.parts import ClusterConfig

    def engine_processes() -> set[psutil.Process]:
        found = set()
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if "VLLM" in child.name() and child.status() != psutil.STATUS_ZOMBIE:
                    found.add(child)
        return found

    before = engine_processes()
    with ray_session(ClusterConfig(num_cpus=2, object_store_gib=0.3)), pytest.MonkeyPatch.context() as patch:
        make_checks_here(patch)
        yield
        assert list(ray.util.list_named_actors()) == []
        groups = ray.util.placement_group_table().values()
        assert [group["name"] for group in groups if group["state"] != "REMOVED"] == []
        _, left = psutil.wait_procs(engine_processes() - before, timeout=20)
        assert left == [], "an engine's own processes end with it"


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def vllm_policy(tiny_model: Path, loop: Loop) -> Iterator[Any]:
    """One real vLLM engine, shared by the session; tests that load other weights put these back."""
    from actors.vllm_policy import VllmPolicy
    from spag_ray.config.engine import EngineConfig

    config = EngineConfig(dtype="float32", max_model_len=512, kv_cache_gib=0.1, max_num_seqs=16)
    policy = loop.run(VllmPolicy.start(str(tiny_model), config))
    yield policy
    loop.run(policy.close())
