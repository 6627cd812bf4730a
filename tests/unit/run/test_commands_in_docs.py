"""Commands in the README and the documents are commands that exist, and a test runs each of them, or is said not to."""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main
from pydantic import BaseModel

from cluster.cli import app
from spag_ray.config.loading import load_config
from spag_ray.config.run import RunConfig
from tests.support.shipped import SHIPPED

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LISTED = ("spag-ray", "make", "python -m spag_ray", "docker", "kubectl", "sbatch", "uv")  # in RUN_BY
NAMES = {path.stem for path in SHIPPED}
PROGRAMS = (*LISTED, "python", "pip", "ray", "tensorboard", "source", "pre-commit", "export")

# What runs a command for real: a test; or None where no test does, because it takes too long or needs what CI lacks.
RUN_BY: dict[str, str | None] = {
    "spag-ray train": "tests/integration/test_end_to_end.py",
    "spag-ray submit": "tests/integration/test_cluster.py",
    "spag-ray runs": "tests/integration/test_cluster.py",
    "spag-ray stop": "tests/integration/test_cluster.py",
    "spag-ray attach": "tests/integration/test_cluster.py",
    "spag-ray watch": "tests/integration/test_cluster.py",
    "spag-ray doctor": "tests/integration/test_doctor.py",
    "spag-ray play": "tests/integration/test_end_to_end.py",
    "spag-ray eval": "tests/integration/test_evaluation.py",
    "spag-ray match": "tests/integration/test_tournament.py",
    "spag-ray reward": "tests/integration/test_end_to_end.py",
    "spag-ray learn": "tests/integration/test_end_to_end.py",
    "spag-ray words": "tests/unit/run/test_cli.py",
    "spag-ray game": "tests/unit/run/test_game_commands.py",
    "spag-ray compare": "tests/unit/report/test_comparison.py",
    "spag-ray config": "tests/unit/run/test_config_reference.py",
    "spag-ray convert": "tests/integration/test_baichuan.py",
    "spag-ray listen": "tests/unit/run/test_listen.py",
    "spag-ray report": "tests/integration/test_report.py",
    "spag-ray dashboard": "tests/unit/run/test_dashboard.py",
    "spag-ray quickstart": "tests/unit/run/test_wheel.py",
    "spag-ray serve": "tests/integration/test_serve.py",
    "spag-ray export": "tests/unit/report/test_export.py",
    "make venv": ".ci/run",
    "make test": ".ci/run",
    "make test-all": ".ci/run",
    "make lint": ".ci/run",
    "make types": ".ci/run",
    "make docs": ".ci/run",
    "make quickstart": None,  # 11 minutes; by hand before a release
    "make quickstart-gpu": None,
    "make venv-gpu": None,  # needs a GPU to be of use
    "make bundle": "tests/unit/run/test_offline_install.py",
    "make gpu-check": None,  # needs a GPU; its CPU parts: tests/integration/test_gpu_check.py
    "make gpu-bench": None,  # needs a GPU; its CPU parts: tests/integration/test_learner_benchmark.py
    "make test-long": None,
    "make chaos": None,
    "make soak": None,  # half an hour; by hand
    "make fuzz": None,
    "python -m spag_ray": "tests/integration/test_resume.py",
    "python -m benchmarks.chat_templates": "tests/unit/game/test_chat_templates.py",
    "python -m benchmarks.deck_difficulty": "tests/unit/game/test_deck_difficulty.py",
    "python -m benchmarks.expert_games": "tests/unit/play/test_scripted_policy.py",
    "python -m benchmarks.imitated": "tests/unit/play/test_imitated.py",
    "python -m benchmarks.meta_strategies": "tests/unit/play/test_meta_strategies.py",
    "python -m benchmarks.loading": "tests/integration/test_learner.py",
    "spag-ray exploitability": "tests/integration/test_games.py",
    "python -m benchmarks.proof": "tests/integration/test_results.py",
    "docker build": None,  # needs a container engine; the steps: tests/integration/test_container.py
    "docker push": None,
    "docker run": None,
    "kubectl apply": None,  # needs Kubernetes; the files: tests/unit/run/test_examples.py
    "kubectl logs": None,
    "kubectl delete": None,
    "kubectl port-forward": None,
    "sbatch docs/examples/slurm.sh": "tests/integration/test_slurm.py",
    "uv run": None,  # by hand: it needs uv
    "python -m benchmarks.kuhn": None,  # half an hour a seed
}


def commands(page: Path) -> Iterator[tuple[int, str]]:
    """(line, command) of code blocks; a command that continues after a backslash is one."""
    is_fenced, begun, started = False, "", 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif (is_fenced or line.startswith("    ") or begun) and (begun or is_command(line)):
            begun, started = begun + line.strip().removesuffix("\\"), started or number
            if not line.endswith("\\"):
                yield started, begun
                begun, started = "", 0


def is_command(line: str) -> bool:
    words = re.sub(r"^\s*((\./)?\.venv/bin/)?", "", re.sub(r"^\s*([A-Z_]+=\S+\s+)*", "", line)).split()
    return bool(words) and words[0] in PROGRAMS and (len(words) > 1)


def parsed(command: str) -> list[str]:
    """Without comments, optional brackets and variables set for it; CONFIG is a file that is there."""
    command = re.sub(r"(?<![\w'\".=])\[([^\]]*)\](?=\s|$)", r"\1", command.split("   #")[0])
    words = shlex.split(command, comments=True)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    words[0] = words[0].removeprefix(".venv/bin/")
    return ["configs/quickstart.yaml" if word == "CONFIG" else word for word in words]


EVERY = [pytest.param(command, id=f"{page.name}:{number}") for page in PAGES for number, command in commands(page)]


def name_of(words: list[str]) -> str:
    length = 3 if words[:2] == ["python", "-m"] else 2
    return " ".join(words[:length])


@pytest.mark.parametrize("command", EVERY)
def test_a_command_of_the_documents_can_be_given(command: str) -> None:
    words = parsed(command)
    match words:
        case ["spag-ray", name, *arguments]:
            parse(name, arguments)
            overrides = [value for option, value in pairwise(words) if option == "-o"]
            config = next((word for word in arguments if word in NAMES), "quickstart")
            load_config(config, [each for each in overrides if "KEY=VALUE" not in each])
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            for target in targets:
                assert "=" in target or f"\n{target}:" in makefile
        case ["python", "-m", module, *options] if module.startswith("benchmarks."):
            assert_benchmark(ROOT / f"{module.replace('.', '/')}.py", options)


def parse(name: str, arguments: list[str]) -> None:
    """As the command line does, up to the call. Raises a usage error for what it does not take."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("spag-ray", [name], resilient_parsing=True)
    command: Any = group.get_command(context, name)
    assert command is not None, name
    if hasattr(command, "commands") and arguments and arguments[0] in command.commands:
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(name, list(arguments), parent=context)


def assert_benchmark(path: Path, options: list[str]) -> None:
    source = path.read_text(encoding="utf-8")
    for call, shared in (("add_arguments(", "machine.py"), ("arguments(__doc__", "seed_runs.py")):
        if call in source:  # options of several benchmarks
            source += (ROOT / "benchmarks" / shared).read_text(encoding="utf-8")
    for option in options:
        if option.startswith("--"):
            assert f'"{option}"' in source, f"{path.name} has no {option}"


def test_every_command_has_a_test_that_runs_it_or_is_said_to_have_none() -> None:
    assert len(EVERY) > 40
    shown = {name_of(parsed(str(param.values[0]))) for param in EVERY}
    ours = {name for name in shown if name.startswith(LISTED)}
    assert ours <= RUN_BY.keys(), "name the test in RUN_BY, or None"
    for name, place in RUN_BY.items():
        if place is not None:
            text, last = (ROOT / place).read_text(encoding="utf-8"), re.split(r"[ ./]", name.removesuffix(".py"))[-1]
            assert re.search(rf"\b(run_)?{last}\b", text), f"{place} does not speak of {name}"


def config_keys(model: type[BaseModel], before: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        found.add(before + name)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= config_keys(kind, f"{before}{name}.")
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/coming_from.md"])
def test_configuration_keys_that_a_page_names_exist(page: str) -> None:
    known = config_keys(RunConfig)
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {key for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?::[^`]*)?`", text) if key.split(".")[0] in known}
    assert named - known <= {"cluster.console", "league.json"}, "a module and a file"


def test_the_files_of_the_readmes_map_exist() -> None:
    named = re.findall(r"^\| `([a-z_/]+\.py)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) == 6
    assert [path for path in named if not (ROOT / path).is_file()] == []
