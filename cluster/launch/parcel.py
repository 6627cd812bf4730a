"""The files that are sent with a job: the four packages, configs/, the run's configuration as one file, and the files
that the configuration names by a relative path.

From a folder, the files that git would track are sent: no ignored files, no .git, no repository inside it. A symbolic
link is followed if it leads to a file that is sent anyway. Other links are left out, and a line says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cluster.monitor.terminal import say
from spag_ray.config.loading import named_paths, write_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError
from spag_ray.games.registry import SHIPPED

MAX_BYTES = 100 * 2**20
GIT_WITHIN_S = 30.0
PACKAGES = ("spag_ray", "actors", "learners", "cluster")
# Of the commands a job uses only these modules, and none of these files: it runs `train` with one configuration.
_USED_OF_COMMANDS = ("__init__.py", "game.py", "report.py", "train.py")
_UNUSED = (
    "cluster/commands/new_game.txt",
    "cluster/commands/new_game_test.txt",
    "cluster/console.py",
    "cluster/launch/parcel.py",
    "cluster/monitor/frame.py",
    "cluster/monitor/run_view.py",
    "cluster/planning/config_reference.py",
    "cluster/schedules/tournament.py",
    "cluster/tracking/grafana.py",
    "spag_ray/families/baichuan.py",
    "spag_ray/results/export.py",
)
_ONLY_FOR = {  # what not every job does: files and folders that no other job uses
    "tasks": ("actors/lm_eval_model.py", "actors/lm_eval_tasks.py", "configs/tasks", "spag_ray/_configs/tasks"),
    "cards": ("configs/decks", "spag_ray/_configs/decks"),
    "own games": ("spag_ray/game/conformance.py",),
    "seeds": ("cluster/commands/seeds.py", "cluster/monitor/comparison.py"),
    "openspiel": ("spag_ray/games/openspiel_game.py",),
    "textarena": ("spag_ray/games/textarena_game.py",),
}
_UNUSED_FOLDERS = ("cluster/gpu_check", "cluster/serve")


@contextlib.contextmanager
def parcel_of(config: RunConfig, console: Console, is_listed: bool = False, has_seeds: bool = False) -> Iterator[Path]:
    """A temporary folder with the files that a job needs. `is_listed`: print every file in it. `has_seeds`: the job
    trains several.

    Raises ConfigError for more than MAX_BYTES, and for a path whose files cannot be sent.
    """
    named = named_files(config)
    files = [*package_files(needs_of(config, has_seeds)), *((path, path) for path in named.files)]
    with tempfile.TemporaryDirectory(prefix="spag-ray-job-") as name:
        folder = Path(name)
        try:
            _check_size({target: source.stat().st_size for source, target in files})  # before anything is copied
            for source, target in files:
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder / target)
        except OSError as error:
            raise ConfigError(f"the job's files cannot be copied to be sent: {error}") from error
        write_config(folder / "run.yaml", config, for_elsewhere=True)
        sizes = {path.relative_to(folder): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        if is_listed:
            for path in sorted(sizes):
                say(console, f"{sizes[path]:>10,}  {path}", highlight=False)
        for path in named.left_out:
            say(console, f"left out: {path}", highlight=False)
        verb = "would send" if is_listed else "sending"
        say(console, f"{verb} {len(sizes)} files, {sum(sizes.values()) / 2**20:.1f} MiB")
        yield folder


def _check_size(sizes: Mapping[Path, int]) -> None:
    if (total := sum(sizes.values())) > MAX_BYTES:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        names = ", ".join(f"{path} ({sizes[path] / 2**20:.0f} MiB)" for path in largest)
        raise ConfigError(
            f"the job's files have {total / 2**20:.0f} MiB, the limit is {MAX_BYTES // 2**20}; the largest: "
            f"{names}; put these where every node can read them, and name them by an absolute path"
        )


def needs_of(config: RunConfig, has_seeds: bool = False) -> set[str]:
    """What a job of this configuration does of _ONLY_FOR."""
    found = {game.name for game in config.games if game.name in _ONLY_FOR}
    if any(game.full_name not in SHIPPED and game.name not in _ONLY_FOR for game in config.games):
        found |= {"own games", "openspiel", "textarena", "cards"}  # a game of one's own may be made from any of ours
    elif found:
        found.add("own games")
    has_own_code = bool(config.tracking.callbacks) or ":" in config.objective.advantage  # which may read cards
    needs_cards = has_own_code or (config.needs_cards and config.words.source != "textarena")
    checks = {"tasks": bool(config.evaluation.tasks), "cards": needs_cards, "seeds": has_seeds}
    return found | {name for name, holds in checks.items() if holds}


def package_files(needs: Container[str] = ()) -> list[tuple[Path, Path]]:
    """(file here, its path in the job) for the packages and configs/, without files that .gitignore names and those
    that no job with these needs uses."""
    found = []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        found += [(root / path, Path(package) / path) for path in _contents(root).files or _walked(root).files]
    configs = root.parent / "configs"
    if configs.is_dir():  # in a checkout; an installed package has them in spag_ray/
        found += [(configs / path, Path("configs") / path) for path in _contents(configs).files]
    return [(file, sent) for file, sent in found if is_sent(sent, needs)]


def is_sent(file: Path, needs: Container[str] = ()) -> bool:
    """Whether a job with these needs may use this file: not other commands and what they alone use, shipped
    configurations of runs, the checks of GPUs, which start runs of their own, nor the servers of pages."""
    for name, files in _ONLY_FOR.items():
        if any(map(file.is_relative_to, files)):
            return name in needs
    if file.is_relative_to("cluster/commands"):
        return file.name in _USED_OF_COMMANDS
    is_of_a_run = file.parent == Path("configs") and file.suffix == ".yaml"
    return not (is_of_a_run or any(map(file.is_relative_to, _UNUSED_FOLDERS)) or file.as_posix() in _UNUSED)


@dataclass(frozen=True)
class Contents:
    """What is sent, and what is not besides ignored files: symbolic links to other places, and repositories. Paths are
    relative."""

    files: tuple[Path, ...]
    left_out: tuple[Path, ...] = ()


def named_files(config: RunConfig) -> Contents:
    """The existing files that the configuration names by a relative path, and those of the folders that it names.

    Raises ConfigError for a path outside the current folder, and for a folder that git ignores. A single file is sent
    even if git ignores it, because the run reads it.
    """
    files, left_out = list[Path](), list[Path]()
    for key, path in _named_here(config):
        if not path.is_dir():
            files.append(path)
            continue
        contents = _contents(path)
        if not contents.files and any(path.iterdir()):
            raise ConfigError(
                f"{key}: {path}: git ignores everything in it, so it is not sent with a job; put it where nodes can "
                "read it, and name it by an absolute path"
            )
        files += [path / name for name in contents.files]
        left_out += [path / name for name in contents.left_out]
    return Contents(tuple(files), tuple(left_out))


def _named_here(config: RunConfig) -> Iterator[tuple[str, Path]]:
    """(key, relative path) of files and folders that exist."""
    for key, name in named_paths(config).items():
        path = Path(name)
        if path.is_absolute() or not path.exists():
            continue
        if ".." in path.parts or not path.resolve().is_relative_to(Path.cwd().resolve()):
            raise ConfigError(
                f"{key}: {name} is outside the current folder and is not sent with a job; name it by an absolute path"
            )
        yield key, path


def _contents(root: Path) -> Contents:
    """The files that git would track; all files if there is neither a checkout nor a .gitignore."""
    above = (root.resolve(), *root.resolve().parents)
    is_checkout = any((folder / ".git").exists() for folder in above)
    if not is_checkout and not any(root.rglob(".gitignore")):
        return _walked(root)
    with tempfile.TemporaryDirectory(prefix="spag-ray-git-") as empty:
        command = ["git", "-C", str(root)]
        if not is_checkout:  # then git applies the .gitignore in an empty repository whose work tree is here
            _git(root, ["git", "init", "-q", "--bare", empty])
            command += [f"--git-dir={empty}", f"--work-tree={root.resolve()}"]
        listed = _git(root, [*command, "ls-files", "-co", "--exclude-standard", "-z", "."])
    return _sorted_out(root, [Path(os.fsdecode(name)) for name in listed.split(b"\0") if name])


def _git(root: Path, command: list[str]) -> bytes:
    """The output of git. Raises ConfigError if git is not installed or fails."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_WITHIN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"{root}: git has not listed the files there within {GIT_WITHIN_S:g} s; name a folder with fewer files, or "
            "put them where every node can read them, and name them by an absolute path"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{root}: git is needed to find ignored files, but cannot be called ({error.strerror}); install it"
        ) from error
    if done.returncode:
        reason = " ".join(os.fsdecode(done.stderr).split())
        raise ConfigError(f"{root}: git cannot list the files there: {reason}")
    return done.stdout


def _walked(root: Path) -> Contents:
    """Everything but caches and the contents of repositories."""
    names = []
    for folder, folders, files in os.walk(root):
        here = Path(folder).relative_to(root)
        if ".git" in {*folders, *files}:
            names.append(here)
            folders.clear()
            continue
        folders[:] = [name for name in folders if name != "__pycache__"]
        names += [here / name for name in files]
        names += [here / name for name in folders if (root / here / name).is_symlink()]
    return _sorted_out(root, names)


def _sorted_out(root: Path, names: list[Path]) -> Contents:
    # Ray also applies a .gitignore, and would leave out tracked files that match it.
    names = sorted({name for name in names if name.name != ".gitignore"})
    plain = {name for name in names if (root / name).is_file() and not (root / name).is_symlink()}
    targets = {(root / name).resolve() for name in plain}
    inside = {name for name in names if name not in plain and (root / name).resolve() in targets}
    others = [name for name in names if name not in plain | inside and os.path.lexists(root / name)]
    return Contents(tuple(sorted(plain | inside)), tuple(others))
