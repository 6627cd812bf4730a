"""Checkpoints are complete or absent; an interrupted run resumes and reaches the same result."""

import errno
import itertools
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.buffer.replay_buffer import ReplayBuffer
from cluster.run.checkpoint import Checkpoints, RunState, check_can_resume, keep_matches, set_aside, to_resume
from cluster.runtime.run_folder import make_run_folder, reopen_run_folder
from spag_ray.config.loading import load_config, parse_config
from spag_ray.config.parts import CheckpointConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import read_log
from spag_ray.episodes.wire import encode
from spag_ray.errors import RunFolderError
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import Turn
from spag_ray.results.matches import Match, read_matches, write_matches


def save(checkpoints: Checkpoints, name: str, order: int, size: int = 1000) -> None:
    with checkpoints.writing(name, RunState(order=order, stage=name)) as folder:
        (folder / "policy").mkdir()
        (folder / "policy" / "weights.pt").write_bytes(bytes(size))


def newest(checkpoints: Checkpoints) -> str | None:
    found = checkpoints.newest()
    return found[1].stage if found else None


def test_the_newest_complete_one_is_found_and_old_ones_go(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep_last=2))
    assert checkpoints.newest() is None
    for order, name in enumerate(("imitated", "spag-1", "spag-2"), 1):
        save(checkpoints, name, order)
        assert newest(checkpoints) == name
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["spag-1", "spag-2"]
    found = checkpoints.newest()
    assert found is not None
    assert found[1] == RunState(order=3, stage="spag-2")


def test_the_newest_is_the_last_that_was_written_whatever_its_name(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep_last=2))
    for order, name in enumerate(("version-9", "version-10", "imitated"), 1):
        save(checkpoints, name, order)
        assert newest(checkpoints) == name
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"version-10", "imitated"}
    save(checkpoints, "older", 0)
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {"version-10", "imitated", "older"}, "what was just written stays"


def test_size_and_time_of_the_newest_are_of_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    assert (checkpoints.newest_bytes(), checkpoints.newest_seconds()) == (0, 0.0)
    clock = itertools.count(100.0, 2.5)
    monkeypatch.setattr("cluster.run.checkpoint.time.perf_counter", lambda: next(clock))
    save(checkpoints, "imitated", 1, size=5000)
    state = (tmp_path / "checkpoints" / "imitated" / "state.json").stat().st_size
    assert checkpoints.newest_bytes() == 5000 + state, "its mark does not count"
    assert checkpoints.newest_seconds() == 2.5


def test_a_budget_is_used_to_the_last_byte(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path, CheckpointConfig()), "one", 1)
    size = Checkpoints(tmp_path, CheckpointConfig()).newest_bytes()
    for num_bytes, kept in ((2 * size, {"one", "two"}), (2 * size - 1, {"two"})):
        save(Checkpoints(tmp_path, CheckpointConfig(max_gib=num_bytes / 2**30)), "two", 2)
        assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == kept
    save(Checkpoints(tmp_path, CheckpointConfig(max_gib=size / 2**30)), "two", 3)
    with pytest.raises(RunFolderError, match=r"checkpoint\.max_gib allows"):
        save(Checkpoints(tmp_path, CheckpointConfig(max_gib=(size - 1) / 2**30)), "two", 4)


@pytest.mark.parametrize("damage", ["mark", "file", "shorter"])
def test_one_that_is_not_whole_does_not_count(damage: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    save(checkpoints, "imitated", 1)
    save(checkpoints, "spag-1", 2)
    folder = tmp_path / "checkpoints" / "spag-1"
    if damage == "mark":
        (folder / "COMPLETE").unlink()
    elif damage == "file":
        (folder / "policy" / "weights.pt").unlink()
    elif damage == "shorter":
        (folder / "policy" / "weights.pt").write_bytes(bytes(999))
    checkpoints.to_resume()
    assert newest(checkpoints) == "imitated"
    save(checkpoints, "spag-1", 2)
    assert newest(checkpoints) == "spag-1", "it is written again in its place"


def written_by_another_version(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what state.json says, and the mark with it."""
    text = json.dumps(change(json.loads((folder / "state.json").read_text())))
    (folder / "state.json").write_text(text)
    mark = json.loads((folder / "COMPLETE").read_text())
    mark["sizes"]["state.json"] = len(text)
    (folder / "COMPLETE").write_text(json.dumps(mark))


def test_a_disk_that_fails_after_a_read_hides_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep_last=2))
    save(checkpoints, "spag-1", 1)
    save(checkpoints, "spag-2", 2)
    real_stat, num_read = Path.stat, itertools.count(1)

    def stat(path: Path, **arguments: Any) -> os.stat_result:
        if path.name == "weights.pt" and "spag-2" in str(path) and next(num_read) > 1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real_stat(path, **arguments)

    monkeypatch.setattr(Path, "stat", stat)
    found = checkpoints.to_resume()
    assert found is not None
    assert found[1].stage == "spag-2"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("unknown key", "its state.json has the unknown key 'curriculum'"),
        ("format", "its format is 99, this version reads 1"),
        ("no mapping", r"its state.json is no mapping"),
        ("mark", "its COMPLETE is not JSON"),
        ("no sizes", "its COMPLETE has no sizes"),
        ("disk is away", "it is a link to a folder that is not there"),
        ("stale disk", "Stale file handle"),
        ("no permission", "Permission denied"),
    ],
)
def test_one_that_is_whole_but_cannot_be_read_is_kept_and_ends_a_resume(
    damage: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the work of weeks: nothing may be removed because this version, or this moment, cannot read it."""
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep_last=1))
    save(checkpoints, "spag-1", 1)
    folder = tmp_path / "checkpoints" / "spag-1"
    real_stat = Path.stat

    def fails(number: int) -> None:
        def stat(path: Path, **arguments: Any) -> os.stat_result:
            if path.name == "weights.pt" and "spag-1" in str(path):
                raise OSError(number, os.strerror(number))
            return real_stat(path, **arguments)

        monkeypatch.setattr(Path, "stat", stat)

    if damage == "unknown key":
        written_by_another_version(folder, lambda state: state | {"curriculum": 3})
    elif damage == "format":
        written_by_another_version(folder, lambda state: state | {"format": 99})
    elif damage == "no mapping":
        written_by_another_version(folder, lambda state: [state])
    elif damage == "mark":
        (folder / "COMPLETE").write_text("{")
    elif damage == "no sizes":
        (folder / "COMPLETE").write_text("{}")
    elif damage == "disk is away":
        folder.rename(tmp_path / "other disk")
        folder.symlink_to(tmp_path / "not mounted")
    else:
        fails(errno.ESTALE if damage == "stale disk" else errno.EACCES)
    with pytest.raises(
        RunFolderError, match=f"checkpoint spag-1 is complete but cannot be read: {reason}.*move it away"
    ):
        checkpoints.to_resume()
    checkpoints.settle()
    save(checkpoints, "spag-2", 2)
    save(checkpoints, "spag-3", 3)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["spag-1", "spag-3"]
    monkeypatch.undo()
    if damage == "disk is away":
        return
    save(checkpoints, "spag-1", 4)
    if damage not in ("stale disk", "no permission"):  # these can be read again by now
        kept = tmp_path / "checkpoints" / ".spag-1.replaced"
        assert (kept / "policy" / "weights.pt").stat().st_size == 1000, "also when another takes its name"


def test_a_file_beside_the_checkpoints_is_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    save(checkpoints, "imitated", 1)
    (tmp_path / "checkpoints" / "notes.txt").write_text("of a person")
    found = checkpoints.to_resume()
    assert found is not None
    assert found[1].stage == "imitated"


def test_a_run_that_has_published_does_not_begin_again_in_silence(tmp_path: Path) -> None:
    config = CheckpointConfig()
    to_resume(tmp_path, config)
    (tmp_path / "published.json").write_text('{"policy": 7}')
    with pytest.raises(RunFolderError, match=r"published version 7, but .*/checkpoints has no complete checkpoint"):
        to_resume(tmp_path, config)
    to_resume(tmp_path, CheckpointConfig(may_begin_again=True))
    to_resume(tmp_path, CheckpointConfig(enabled=False))
    save(Checkpoints(tmp_path, config), "start", 1)
    to_resume(tmp_path, config)
    written_by_another_version(tmp_path / "checkpoints" / "start", lambda state: state | {"format": 99})
    with pytest.raises(RunFolderError, match="its format is 99"):
        to_resume(tmp_path, CheckpointConfig(may_begin_again=True))


@pytest.mark.parametrize(
    ("schedule", "name", "state", "begun"),
    [
        ("rounds", "spag-2", RunState(stage="spag-2", rounds=2), 2),
        ("rounds", "spag-3-step-4", RunState(stage="spag-2", rounds=2), 3),
        ("rounds", ".spag-3-step-4.replaced", RunState(stage="spag-2", rounds=2), 3),
        ("rounds", "imitated-step-4", RunState(), 0),
        ("stream", "version-4", RunState(stage="spag-2", rounds=2, parts=4), 2),
        ("stream", "version-5", RunState(stage="spag-2", rounds=2, parts=5), 3),
    ],
)
def test_a_run_does_not_end_at_a_round_before_the_one_it_is_in(
    schedule: str, name: str, state: RunState, begun: int, tmp_path: Path
) -> None:
    rounds = {"games_per_round": 64} if schedule == "stream" else {}
    for last in range(4):
        config = parse_config({"schedule": schedule, "self_play": {"rounds": last, **rounds}})
        if last >= begun:
            check_can_resume(tmp_path / name, state, config, {}, {})
            continue
        with pytest.raises(RunFolderError, match=f"{name}: round {begun} has begun, but self_play.rounds is {last}"):
            check_can_resume(tmp_path / name, state, config, {}, {})


def test_a_run_that_was_let_begin_again_once_is_not_for_ever(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", parse_config({}))
    reopen_run_folder(folder, parse_config({"checkpoint": {"may_begin_again": True, "keep_last": 3}}))
    assert load_config(str(folder / "config.yaml")).checkpoint == CheckpointConfig(keep_last=3)
    always = make_run_folder(tmp_path / "always", parse_config({"checkpoint": {"may_begin_again": True}}))
    no_more = make_run_folder(tmp_path / "no more", parse_config({"checkpoint": {"may_begin_again": True}}))
    reopen_run_folder(no_more, parse_config({"checkpoint": {"may_begin_again": False}}))
    assert not load_config(str(no_more / "config.yaml")).checkpoint.may_begin_again
    reopen_run_folder(always, load_config(str(always / "config.yaml")))
    assert load_config(str(always / "config.yaml")).checkpoint.may_begin_again, "it was started so"


def test_whatever_ends_the_writing_the_one_before_is_left(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    save(checkpoints, "imitated", 1)

    def write(error: BaseException) -> None:
        with checkpoints.writing("spag-1", RunState(order=2, stage="spag-1")) as folder:
            (folder / "half").write_bytes(b"x")
            raise error

    with pytest.raises(RunFolderError, match=r"spag-1 could not be written \(No space left on device\); the n"):
        write(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(RunFolderError, match=r"\(rank 1 could not .*the newest complete one is imitated"):
        write(RunFolderError("rank 1 could not write its part: no space"))
    with pytest.raises(KeyboardInterrupt):
        write(KeyboardInterrupt())
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["imitated"]
    assert newest(checkpoints)


def test_a_disk_without_room_and_a_budget_that_is_too_small_are_said_before_anything_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    save(checkpoints, "imitated", 1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=500))
    with pytest.raises(RunFolderError, match=r"the disk has 0\.00 GiB left"):
        save(checkpoints, "spag-1", 2)
    monkeypatch.undo()
    small = Checkpoints(tmp_path, CheckpointConfig(max_gib=1500 / 2**30))
    with pytest.raises(RunFolderError, match=r"checkpoint\.max_gib allows"):
        save(small, "spag-1", 2, size=4000)
    assert newest(checkpoints) == "imitated"
    save(small, "spag-1", 2, size=900)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["spag-1"], "two are over the budget"


FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def ends_before_its_death(write: Callable[[], object], num_steps: int) -> bool:
    """`write` in a process that is killed when it has touched the file system `num_steps` times; whether it came to
    its end first."""
    if (child := os.fork()) == 0:
        left = iter(range(num_steps))

        def kill(event: str, _: object) -> None:
            if event in FILE_EVENTS and next(left, None) is None:
                os._exit(9)

        sys.addaudithook(kill)
        write()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def only_one_of(folder: Path) -> Checkpoints:
    return Checkpoints(folder, CheckpointConfig(keep_last=1))


def newest_order(folder: Path) -> int | None:
    found = only_one_of(folder).newest()
    return found[1].order if found else None


def test_one_of_the_same_name_is_complete_wherever_its_writer_is_killed(tmp_path: Path) -> None:
    for num_steps in itertools.count():
        folder = tmp_path / str(num_steps)
        folder.mkdir()
        save(only_one_of(folder), "version-5", 1)
        ended = ends_before_its_death(partial(save, only_one_of(folder), "version-5", 2), num_steps)
        assert newest_order(folder) in (1, 2), f"killed at step {num_steps}"
        once_more = ends_before_its_death(partial(save, only_one_of(folder), "version-5", 3), num_steps)
        assert newest_order(folder) in (1, 2, 3), f"killed at step {num_steps}, twice"
        save(only_one_of(folder), "version-5", 4)
        assert newest_order(folder) == 4
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["version-5"], "what is left over goes"
        if ended and once_more:
            break
    assert num_steps > 10


def test_one_that_cannot_take_the_place_of_another_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep_last=1))
    save(checkpoints, "version-5", 1)

    def full_at_the_mark(path: Path, text: str) -> None:
        assert path.name == "COMPLETE"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("cluster.run.checkpoint.write_atomically", full_at_the_mark)
    with pytest.raises(RunFolderError, match=r"No space left on device\); the newest complete one is version-5"):
        save(checkpoints, "version-5", 2)
    assert newest_order(tmp_path) == 1
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["version-5"]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A real file system of one MiB that fills up."""
    folder = Path("/dev/shm/spag_ray-test-disk")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if os.system(f"mount -t tmpfs -o size=1m tmpfs {folder} 2>/dev/null") != 0:
        folder.rmdir()
        pytest.skip("mounting a small file system needs root")
    yield folder
    os.system(f"umount {folder}")
    folder.rmdir()


def test_a_disk_that_fills_up_while_a_checkpoint_is_written(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk, CheckpointConfig())
    save(checkpoints, "imitated", 1, size=300_000)
    with pytest.raises(RunFolderError, match=r"No space left on device.*newest complete one is imitated"):
        save(checkpoints, "spag-1", 2, size=900_000)
    assert newest(checkpoints) == "imitated"
    save(checkpoints, "spag-1", 2, size=300_000)
    assert newest(checkpoints) == "spag-1"


LOGS = ["expert", "eval-base", "eval-imitated", "spag-1", "eval-spag-1", "spag-2", "eval-spag-2"]
LOGS += [
    "match-imitated@base",
    "match-base@spag-1",
    "match-spag-2@imitated",
    "match-imitated@spag-2",
    "match-qwen2+5@spag-2",
    "stream",
]


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (RunState(), ["expert", "eval-base", "stream"]),
        (
            RunState(stage="imitated"),
            ["expert", "eval-base", "eval-imitated", "match-imitated@base", "spag-1", "stream"],
        ),
        (RunState(stage="spag-1", rounds=1), [*LOGS[:6], "match-imitated@base", "match-base@spag-1", "stream"]),
        (RunState(stage="spag-2", rounds=2), LOGS),
    ],
)
def test_games_of_weights_that_are_gone_are_set_aside(state: RunState, kept: list[str], tmp_path: Path) -> None:
    for name in LOGS:
        (tmp_path / f"{name}.log").touch()
    (tmp_path / "spag-2.1.log").touch()  # a second segment goes with the first
    moved = set_aside(tmp_path, state, parse_config({"self_play": {"rounds": 2}}))
    left = {path.name.removesuffix(".log") for path in tmp_path.glob("*.log")}
    assert left - {"spag-2.1"} == set(kept)
    assert ("spag-2.1" in left) == ("spag-2" in kept)
    assert len(moved) == len(LOGS) + 1 - len(left)
    assert len(list(tmp_path.iterdir())) == len(LOGS) + 1, "nothing is deleted"


def test_games_that_were_set_aside_before_are_not_overwritten(tmp_path: Path) -> None:
    config = parse_config({"self_play": {"rounds": 2}})
    for attempt in ("first", "second"):
        (tmp_path / "spag-2.log").write_text(attempt)
        set_aside(tmp_path, RunState(order=1, stage="imitated"), config)
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["first", "second"]


def test_a_run_without_imitation_keeps_the_games_of_its_first_round_from_the_start(tmp_path: Path) -> None:
    for name in ("spag-1", "spag-2"):
        (tmp_path / f"{name}.log").touch()
    assert set_aside(tmp_path, RunState(), parse_config({"imitation": {"enabled": False}})) == ["spag-2.log"]


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (RunState(), ["base expert"]),
        (RunState(stage="spag-1", rounds=1), ["base expert", "spag-1 expert", "imitated spag-1"]),
        (RunState(stage="spag-2", rounds=2), ["base expert", "spag-1 expert", "imitated spag-1", "published spag-2"]),
    ],
)
def test_what_others_played_with_stages_that_stay_is_kept(state: RunState, kept: list[str], tmp_path: Path) -> None:
    names = ("base expert", "spag-1 expert", "imitated spag-1", "published spag-2")
    matches = [Match(attacker, defender, ()) for attacker, defender in (name.split() for name in names)]
    config = parse_config({"self_play": {"rounds": 2}})
    keep_matches(tmp_path / "matches.json", state, config)
    assert not (tmp_path / "matches.json").exists()
    write_matches(tmp_path / "matches.json", matches)
    keep_matches(tmp_path / "matches.json", state, config)
    found = read_matches(tmp_path / "matches.json")
    assert [f"{match.attacker} {match.defender}" for match in found] == kept


def test_a_run_goes_on_only_as_the_run_it_was(tmp_path: Path) -> None:
    config = parse_config({})
    folder = make_run_folder(tmp_path / "run", config)
    reopen_run_folder(folder, parse_config({"engine": {"num_engines": 4}, "self_play": {"rounds": 9}}))
    with pytest.raises(RunFolderError, match=r"started with objective\.kl_coeff: 0\.2, not 0\.1"):
        reopen_run_folder(folder, parse_config({"objective": {"kl_coeff": 0.1}}))
    reopen_run_folder(folder, parse_config({"self_play": {"on_collapse": "warn"}}))
    silent = make_run_folder(tmp_path / "silent", parse_config({"chat_template_kwargs": {"enable_thinking": False}}))
    with pytest.raises(RunFolderError, match=r"started with chat_template_kwargs: {'enable_thinking': False}, not {}"):
        reopen_run_folder(silent, config)
    reopen_run_folder(folder, parse_config({"learner": {"env": {"NCCL_DEBUG": "INFO"}}}))
    reopen_run_folder(folder, config)
    with pytest.raises(RunFolderError, match="no run to resume"):
        reopen_run_folder(tmp_path / "nothing", config)


@pytest.mark.parametrize("part", ["engine", "learner"])
def test_config_yaml_is_its_owners_alone_where_it_holds_environment_variables(part: str, tmp_path: Path) -> None:
    plain, secret = parse_config({}), parse_config({part: {"env": {"HF_TOKEN": "hf_secret"}}})

    def mode(folder: Path) -> int:
        return stat.S_IMODE((folder / "config.yaml").stat().st_mode)

    before = os.umask(0o022)
    try:
        folder = make_run_folder(tmp_path / "run", plain)
        assert mode(folder) == 0o644, "who may read the folder may watch the run"
        reopen_run_folder(folder, secret)
        assert mode(folder) == 0o600 == mode(make_run_folder(tmp_path / "other", secret))
    finally:
        os.umask(before)
    assert load_config(str(folder / "config.yaml")) == secret, "it is resumed from this file"


def test_what_is_set_aside_is_not_written_to_any_more(tmp_path: Path) -> None:
    turn = Turn(Role.ATTACKER, "x", (1,), (2,), (-0.5,), "policy", 1, 1)
    verdict = Verdict(Outcome.TIED, EndReason.UNDECIDED, 1, "time is up", None, None)
    first, second = (
        encode(Episode(f"s/{n}", n, "eval-spag-1", "river", 2, "strict", 1.0, (turn,), verdict)) for n in range(2)
    )
    buffer = ReplayBuffer(str(tmp_path))
    buffer.add([first])
    assert set_aside(tmp_path, RunState(), parse_config({})) == ["eval-spag-1.log"]
    buffer.reread()
    assert buffer.played("eval-spag-1") == {}
    assert buffer.add([second]) == 1
    assert [episode.number for episode in read_log(tmp_path / "eval-spag-1.log")] == [1]
