"""What a job is sent: of the files here, those that its configuration names and nothing that is private."""

import ast
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cluster import console
from cluster.cli import app
from cluster.guarded import run_guarded
from cluster.launch import parcel
from cluster.launch.parcel import PACKAGES, named_files, package_files, parcel_of
from spag_ray.config.loading import load_config, parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError

OF_OTHERS = {"openspiel_game.py", "textarena_game.py"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a git checkout with a folder of tasks. In it are ignored files, a repository, and links
    that lead to a file of the folder, to an ignored one and out of it."""
    (tmp_path / "key").write_text("secret")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "id").write_text("secret")
    folder = tmp_path / "here"
    (folder / "tasks" / "sub").mkdir(parents=True)
    for name in ("a.yaml", "sub/b.yaml", "notes.env", "sub/private.txt"):
        (folder / "tasks" / name).write_text(name)
    (folder / "tasks" / ".gitignore").write_text("*.env\nsub/private.txt\n")
    (folder / "tasks" / "again.yaml").symlink_to("sub/b.yaml")
    (folder / "tasks" / "file").symlink_to(tmp_path / "key")
    (folder / "tasks" / "folder").symlink_to(tmp_path / "keys")
    (folder / "tasks" / "ignored").symlink_to("notes.env")
    git(folder, "init", "-q")
    git(folder / "tasks", "init", "-q", "nested")
    (folder / "tasks" / "nested" / "c.yaml").write_text("of another repository")
    monkeypatch.chdir(folder)
    return folder


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, timeout=30)


def with_tasks(folder: str = "tasks", **changes: Any) -> RunConfig:
    return parse_config({"evaluation": {"tasks": ["own"], "include_path": folder}, **changes})


def sent_of(config: RunConfig) -> set[str]:
    """What a job is sent besides the packages and configs/."""
    with parcel_of(config, Console(quiet=True)) as folder:
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert not any(path.is_symlink() for path in folder.rglob("*"))
    return {name for name in names if name.split("/")[0] not in (*PACKAGES, "configs")}


def test_of_a_folder_a_job_is_sent_neither_ignored_files_nor_git_nor_what_links_lead_to(here: Path) -> None:
    wanted = {"run.yaml", "tasks/a.yaml", "tasks/sub/b.yaml", "tasks/again.yaml"}
    assert sent_of(with_tasks()) == wanted
    assert sent_of(with_tasks("tasks/sub")) == {"run.yaml", "tasks/sub/b.yaml"}
    shutil.rmtree(here / ".git")
    assert sent_of(with_tasks()) == wanted, "a .gitignore is heeded outside a checkout, too"
    git(here / "tasks", "init", "-q")
    assert sent_of(with_tasks()) == wanted, "the folder may be a repository itself"


def test_games_of_other_packages_are_sent_where_they_are_played() -> None:
    def sent(name: str, env: str) -> set[str]:
        with parcel_of(parse_config({"game": {"name": name, "env": env}}), Console(quiet=True)) as folder:
            return {path.name for path in (folder / "spag_ray" / "games").glob("*_*.py")} & OF_OTHERS

    assert sent("openspiel", "leduc_poker") == {"openspiel_game.py"}
    assert sent("textarena", "TicTacToe-v0") == OF_OTHERS - {"openspiel_game.py"}
    assert not {str(target) for _, target in package_files()} & {f"spag_ray/games/{name}" for name in OF_OTHERS}


def test_decks_are_sent_where_a_game_has_its_words_or_its_expert_from_one() -> None:
    def has_decks(**changes: Any) -> bool:
        with parcel_of(parse_config(changes), Console(quiet=True)) as folder:
            return (folder / "configs" / "decks").is_dir()

    own_words = {"source": "words.txt", "deck": "everyday"}
    assert has_decks()
    assert has_decks(words=own_words), "the expert of imitation"
    assert not has_decks(words=own_words, imitation={"enabled": False})
    assert not has_decks(words={"source": "textarena"}, imitation={"enabled": False})
    assert not has_decks(game={"name": "kuhn"})
    assert has_decks(game={"name": "kuhn"}, tracking={"callbacks": ["mine:Reads"]}), "your code may read one"
    assert has_decks(game={"name": "mine:MyTaboo"}), "made from ours"


def test_a_folder_that_git_ignores_and_a_link_out_of_here_are_refused(here: Path, tmp_path: Path) -> None:
    (here / ".gitignore").write_text("tasks/\nrows.json\n")
    with pytest.raises(ConfigError, match=r"evaluation.include_path: tasks: git ignores .* absolute path"):
        sent_of(with_tasks())
    (here / "rows.json").write_text("[]")
    assert "rows.json" in sent_of(parse_config({"self_play": {"sft_file": "rows.json"}})), (
        "the run reads this very file"
    )
    (here / "rows.json").unlink()
    (here / "rows.json").symlink_to(tmp_path / "key")
    (here / "linked").symlink_to(tmp_path / "keys")
    for config in (
        with_tasks("linked"),
        with_tasks("linked/id"),
        parse_config({"self_play": {"sft_file": "rows.json"}}),
    ):
        with pytest.raises(ConfigError, match="is outside the current folder"):
            sent_of(config)


def test_where_git_cannot_be_called_a_folder_with_rules_for_it_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    unknown = pytest.raises(ConfigError, match="git is needed to find ignored files, but cannot be called")
    with unknown:
        named_files(with_tasks())
    shutil.rmtree(here / ".git")
    with unknown:
        named_files(with_tasks())
    (here / "tasks" / ".gitignore").unlink()
    names = {"a.yaml", "again.yaml", "ignored", "notes.env", "sub/b.yaml", "sub/private.txt"}
    assert {path.as_posix() for path in named_files(with_tasks()).files} == {f"tasks/{name}" for name in names}
    (here / "tasks" / ".git").mkdir()
    with unknown:
        named_files(with_tasks())


def test_a_git_that_does_not_answer_is_not_waited_for(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(parcel, "GIT_WITHIN_S", 0.2)
    with pytest.raises(ConfigError, match=r"tasks: git has not listed the files there within 0\.2 s"):
        named_files(with_tasks())


def test_files_that_are_too_large_are_not_copied_and_one_that_cannot_be_is_told(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[Path] = []
    monkeypatch.setattr(parcel.shutil, "copyfile", lambda source, target: copied.append(target))
    with (here / "large.json").open("wb") as file:
        file.truncate(2 * parcel.MAX_BYTES)
    with pytest.raises(ConfigError, match=r"the limit is 100; the largest: large.json \(200 MiB\)"):
        sent_of(parse_config({"self_play": {"sft_file": "large.json"}}))
    assert copied == []

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "small.json")

    monkeypatch.setattr(parcel.shutil, "copyfile", refused)
    with pytest.raises(ConfigError, match=r"cannot be copied to be sent: .*Permission denied: 'small\.json'"):
        sent_of(with_tasks())


def test_a_configuration_that_holds_environment_variables_is_sent_as_its_owners_alone(here: Path) -> None:
    with parcel_of(with_tasks(engine={"env": {"HF_TOKEN": "hf_secret"}}), Console(quiet=True)) as folder:
        assert stat.S_IMODE((folder / "run.yaml").stat().st_mode) == 0o600


def test_submit_dry_run_lists_what_it_would_send_and_asks_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "run.yaml").write_text("evaluation: {tasks: [own], include_path: tasks}\n")
    arguments = ["submit", "run.yaml", "--address", "http://127.0.0.1:9", "--run-dir", "/runs/x", "--dry-run"]
    assert run_guarded(lambda **options: app(arguments, **options)) == 0
    *listed, total = capsys.readouterr().out.splitlines()
    others = [listed.pop().removeprefix("left out: ") for _ in range(4)]
    sizes = {name: int(size.replace(",", "")) for size, name in (line.split() for line in listed)}
    with parcel_of(load_config("run.yaml"), Console(quiet=True)) as folder:
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        assert sizes == {name: path.stat().st_size for name, path in files.items()}
    assert sizes["tasks/a.yaml"] == len("a.yaml")
    assert "spag_ray/config/run.py" in sizes
    assert sorted(others) == [f"tasks/{name}" for name in ("file", "folder", "ignored", "nested")]
    assert total.startswith(f"would send {len(files)} files, ")


def test_a_job_is_sent_little_and_every_module_that_a_sent_one_imports_at_once() -> None:
    sent = {str(target): source for source, target in package_files()}
    assert sum(source.stat().st_size for source in sent.values()) < 1.85 * 2**20
    assert lacking_of(sent) == set()


def test_a_job_of_several_seeds_is_sent_what_trains_and_compares_them() -> None:
    sent = {str(target): source for source, target in package_files({"seeds"})}
    more = sent.keys() - {str(target) for _, target in package_files()}
    assert more == {"cluster/commands/seeds.py", "cluster/monitor/comparison.py"}
    assert lacking_of(sent) == set()


FOUND_THERE = """
import pickle, sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in repr(each).lower()]
sys.path.insert(0, sys.argv[1])
start = pickle.loads(bytes.fromhex(sys.argv[2]))
print(sys.modules[start.__module__].__file__)
"""


def test_what_a_session_asks_the_cluster_to_do_is_among_the_files_that_it_sends(tmp_path: Path) -> None:
    """Ray pickles a function of a module by name. No installation of ours is there but the files that were sent."""
    asked = console.start
    with parcel_of(parse_config({}), Console(quiet=True)) as folder:
        command = [sys.executable, "-c", FOUND_THERE, str(folder), pickle.dumps(asked).hex()]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert found.stdout.strip() == str(folder / "cluster" / "launch" / "detached.py"), found.stderr[-500:]


def lacking_of(sent: Mapping[str, Path]) -> set[str]:
    """Modules that a sent one imports at once, and that are not sent."""
    lacking = set()
    for name, source in sent.items():
        for node in ast.parse(source.read_text(encoding="utf-8")).body if name.endswith(".py") else ():
            module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            if module and module.split(".")[0] in PACKAGES:
                path = module.replace(".", "/")
                lacking |= {module} - {module for file in (f"{path}.py", f"{path}/__init__.py") if file in sent}
    return lacking
