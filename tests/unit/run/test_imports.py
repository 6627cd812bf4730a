"""What a run needs is imported before it starts, and a package that is missing is named in one line."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.checks import imports, preflight
from cluster.checks.check_results import import_checks
from cluster.checks.imports import Need, check_imports, import_faults, needs_of
from cluster.checks.node_report import Wanted, look
from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError
from tests.support.settings import config_of

REFEREE = tuple(need for need in needs_of(parse_config({})) if need.part == "the referee")


def without(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without this package."""
    missing = f"raise ModuleNotFoundError(\"No module named '{package}'\", name='{package}')\n"
    (folder / f"{package}.py").write_text(missing)
    monkeypatch.syspath_prepend(folder)


def test_a_missing_dependency_is_named_with_node_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """textblob is there, and imports nltk, which is not: the referee found out at the first judged turn."""
    without("nltk", tmp_path, monkeypatch)
    (line,) = import_faults(REFEREE, "node-2")
    assert line == (
        "nltk cannot be imported on node-2 (ModuleNotFoundError: No module named 'nltk'); it is needed by the "
        "referee, through textblob: install requirements/cpu.txt, or the wheel with [cpu], on it"
    )


def test_a_node_reports_what_it_cannot_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look("node-2", Wanted(needs=REFEREE)).import_faults == ()
    without("lemminflect", tmp_path, monkeypatch)
    report = look("node-2", Wanted(needs=REFEREE))
    (result,) = import_checks([replace(report, node="a", import_faults=()), report])
    assert (result.check, result.status) == ("imports", "fail")
    assert result.text.startswith("lemminflect cannot be imported on node-2 (")


def test_a_module_that_crashes_hangs_or_raises_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    bodies = {"crashes": "import os; os._exit(3)", "hangs": "import time; time.sleep(60)", "raises": "1 / 0"}
    for name, body in bodies.items():
        (tmp_path / f"{name}.py").write_text(f"print('noise')\n{body}\n")
    needs = {name: Need(name, "engines", "install it") for name in bodies}
    (raised,) = import_faults([needs["raises"], REFEREE[1]], "b")
    assert raised.startswith("raises cannot be imported on b (ZeroDivisionError: division by zero); it is needed by ")
    (crashed,) = import_faults([needs["crashes"]], "b")
    assert crashed == "crashes ends its process (exit code 3) when it is imported on b; install it"
    assert import_faults([needs["hangs"]], "b", within_s=2) == [], "a machine under load takes minutes"
    assert "b: hangs was not imported within 2 s" in caplog.text
    assert not any("hangs" in known for known in imports._importable), "a second run asks again"


def test_what_a_library_prints_or_does_at_its_end_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    bodies = {"ends_badly": "import atexit, os; atexit.register(os._exit, 3)", "prints": "import os; os.write(1, b'x')"}
    for name, body in bodies.items():
        (tmp_path / f"{name}.py").write_text(f"{body}\n")
        assert import_faults([Need(name, "engines", "install it")], "b") == []


def test_an_interrupt_ends_the_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    (tmp_path / "late.py").write_text("from pathlib import Path; Path(__file__).with_suffix('.begun').touch()\n")
    import_faults([Need(name, "engines", "install it") for name in ("interrupted", "late")], "b")
    assert not (tmp_path / "late.begun").exists()


@pytest.mark.parametrize("error", [ConfigError("the prompts are too long"), KeyboardInterrupt()])
def test_an_error_of_the_other_checks_does_not_wait_for_the_imports(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endless.py").write_text("import time; time.sleep(60)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(imports, "needs_of", lambda *_: (Need("endless", "engines", "install it"),))

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(preflight, "in_a_process", fail)
    began = time.monotonic()
    with pytest.raises(type(error)):
        preflight.check_with_imports(parse_config({}), print)
    assert time.monotonic() - began < 20


def test_a_library_that_crashes_in_the_other_checks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing.py").write_text("import os; os.abort()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(imports, "needs_of", lambda *_: (Need("crashing", "engines", "install it again"),))
    with pytest.raises(ConfigError, match=r"crashing ends its process .* install it again"):
        preflight.check_with_imports(parse_config({}), os.abort)


def test_engines_and_ranks_have_the_environment_of_the_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "picky.py").write_text("import os\nos.environ['WHERE_IT_IS']\n")
    need = Need("picky", "engines", "set it")
    assert len(import_faults([need], "b")) == 1
    assert import_faults([need], "b", {"WHERE_IT_IS": "here"}) == []


@pytest.mark.parametrize(
    ("settings", "module", "part"),
    [
        ("", "vllm.v1.engine.async_llm", "engines"),
        ("", "learners.learner", "the learner"),
        ("", "textblob", "the referee"),
        ("", "cluster.tracking.tensorboard", "tracking.tensorboard"),
        ("engine.kind=transformers", "actors.transformers_policy", "engines"),
        ("learner.lora={}", "peft", "learner.lora"),
        ("evaluation.tasks=[piqa]", "lm_eval.evaluator", "evaluation.tasks"),
        ("tracking.wandb.project=x", "wandb", "tracking.wandb"),
        ("game={name: textarena, env: TicTacToe-v0}; imitation.enabled=false", "textarena", "game.name: textarena"),
    ],
)
def test_only_what_this_run_uses_is_imported(settings: str, module: str, part: str) -> None:
    assert (module, part) in [(need.module, need.part) for need in needs_of(config_of(settings))]
    bare = config_of("game.name=kuhn; prompts=lines; engine.kind=transformers; tracking.tensorboard=false")
    unused = [need.module for need in needs_of(bare, trains=False)]
    assert unused == ["actors.transformers_policy"]


def test_games_need_nothing_that_only_training_uses() -> None:
    """The Run of `match` and `play` draws its curves, too."""
    config = parse_config({"learner": {"lora": {}}, "evaluation": {"tasks": ["piqa"]}})
    parts = {need.part for need in needs_of(config, trains=False)}
    assert parts == {"engines", "the referee", "tracking.tensorboard"}
    assert "engines" not in {need.part for need in needs_of(config, trains=False, has_engines=False)}


def test_a_run_is_refused_before_the_package_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "needs_of", lambda *_: REFEREE)
    config = parse_config({})
    check_imports(config)
    without("nltk", tmp_path, monkeypatch)

    def fail(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'nltk'", name="nltk")

    for check in (lambda *_, **__: None, fail):
        monkeypatch.setattr(preflight, "in_a_process", check)
        with pytest.raises(ConfigError, match="nltk cannot be imported on this machine") as caught:
            preflight.check_with_imports(config, print)
        assert "\n" not in str(caught.value)


def test_a_second_run_of_a_process_does_not_import_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert import_faults(REFEREE, "b") == []
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("it is known"))
    assert import_faults(REFEREE, "b") == []


def test_a_machine_beside_the_cluster_needs_nothing_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the report's packages: a run whose report cannot be made says so at its end, and is not lost."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("nothing is needed"))
    check_imports(parse_config({"cluster": {"address": "auto"}}))
    parts = {need.part for need in needs_of(parse_config({}))}
    assert "engines" in parts
    assert "the report at the end" not in parts
