"""Files that are whole or absent: a full disk, a kill, and several writers at once."""

import multiprocessing
import os
import signal
import stat
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spag_ray.errors import InputError, RunFolderError
from spag_ray.host import whole_files
from spag_ray.host.whole_files import given_text, locked, new_file, replaced, write_atomically
from spag_ray.results.matches import Match, change_matches, read_matches
from tests.support.full_disk import full_disk

SPAWNED = multiprocessing.get_context("spawn")


def only(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_full_disk_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    write_atomically(file, "before")
    with full_disk(), pytest.raises(OSError, match="File too large"):
        write_atomically(file, "after")
    assert file.read_text() == "before"
    assert only(tmp_path) == ["kept.json"]


def test_an_exception_of_the_writer_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("before")

    def fail_halfway() -> None:
        with replaced(file) as out:
            out.write("half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_halfway()
    assert file.read_text() == "before"
    assert only(tmp_path) == ["page.html"]


def test_a_file_that_was_asked_for_is_new_and_whole_or_absent(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        with new_file(path) as file:
            file.write("text")

    with full_disk(), pytest.raises(InputError, match=r"words\.txt cannot be written: File too large"):
        write(tmp_path / "words.txt")
    assert only(tmp_path) == []
    write(tmp_path / "words.txt")
    with pytest.raises(InputError, match="nothing is overwritten"):
        write(tmp_path / "words.txt")
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write(tmp_path / "none" / "words.txt")


def test_a_given_file_that_cannot_be_read_is_named_with_what_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_bytes(b"\xef\xbb\xbfriver\n")
    assert given_text(tmp_path / "words.txt", "the list") == "river\n"
    with pytest.raises(InputError, match=r"cannot read the list \(No such file .*; did you mean `.*/words.txt`\?$"):
        given_text(tmp_path / "word.txt", "the list")
    (tmp_path / "word.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"cannot read the list \('utf-8' .*; give a UTF-8 file$"):
        given_text(tmp_path / "word.txt", "the list")


def test_two_writers_at_once_do_not_mix_their_texts(tmp_path: Path) -> None:
    file = tmp_path / "x"
    with replaced(file) as first:
        first.write("first")
        first.flush()
        write_atomically(file, "second")
        assert file.read_text() == "second"
    assert file.read_text() == "first", "the last one to end wins"


def test_partial_files_of_killed_writers_are_removed_once_they_are_old(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in (".x.1.partial", ".x.2.partial", ".y.1.partial"))
    for each in (old, new, other):
        each.touch()
    for each in (old, other):
        os.utime(each, (1, 1))
    write_atomically(tmp_path / "x", "text")
    assert only(tmp_path) == [".x.2.partial", ".y.1.partial", "x"], "a new one may be of a live writer"


@pytest.mark.parametrize(("mode", "umask", "expected"), [(0o666, 0o027, 0o640), (0o600, 0o000, 0o600)])
def test_permissions_are_those_asked_for_less_the_umask(mode: int, umask: int, expected: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "x", "text", mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == expected


def add(guest: Match, found: list[Match]) -> list[Match]:
    return [*found, guest]


def add_guests(path: Path, first: int, how_many: int) -> None:
    for number in range(first, first + how_many):
        guest = Match(f"guest-{number}", "spag-1", ())
        change_matches(path, partial(add, guest))


def test_no_match_is_lost_when_several_processes_add_theirs_at_once(tmp_path: Path) -> None:
    path = tmp_path / "matches.json"
    processes = [SPAWNED.Process(target=add_guests, args=(path, first, 25)) for first in (0, 100, 200)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len({match.attacker for match in read_matches(path)}) == 75


def hold(path: Path, told: Any) -> None:
    with locked(path):
        told.set()
        time.sleep(60)


def test_a_lock_ends_with_its_process_and_a_live_holder_is_waited_for(tmp_path: Path) -> None:
    path, told = tmp_path / "matches.json", SPAWNED.Event()
    process = SPAWNED.Process(target=hold, args=(path, told))
    process.start()
    assert told.wait(60)
    waiting = locked(path, within_s=0.2)
    with pytest.raises(RunFolderError, match=r"\.matches\.json\.lock: another process has held this lock for 0\.2 s"):
        waiting.__enter__()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    with locked(path, within_s=5):
        pass


def test_a_file_system_without_locks_is_used_without_them_and_that_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(whole_files.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(whole_files.fcntl, "flock", refuse)
    with locked(tmp_path / "matches.json"):
        pass
    assert "has no locks" in caplog.text
