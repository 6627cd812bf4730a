"""One run at a time has a folder: of several takers one gets the lease, a dead holder's is taken over, a live one's is
not, and a process that has lost it writes nothing more."""

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.buffer.replay_buffer import ReplayBuffer
from cluster.run.checkpoint import Checkpoints, RunState
from cluster.tracking.recorder import Recorder
from spag_ray.config.parts import CheckpointConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import read_log
from spag_ray.episodes.wire import encode
from spag_ray.errors import LeaseLostError, RunFolderError
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import Turn
from spag_ray.host import folder_lease
from spag_ray.host.folder_lease import DEAD_AFTER_S, FolderLease, Heartbeat, held
from spag_ray.host.processes import Process, has_ended, this_process
from spag_ray.results.lines import SetAsideLine
from tests.support.waiting import wait_until


class Clock:
    """Stands still but for those who sleep; `then` happens when they do."""

    def __init__(self, then: Callable[[float], object] = lambda now: None) -> None:
        self.now = 1000.0
        self._then = then

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._then(self.now - 1000.0)


def take(folder: Path, clock: Clock | None = None) -> FolderLease:
    clock = clock or Clock(lambda _: pytest.fail("nothing is to be waited for"))
    return FolderLease.take(folder, clock=clock.time, sleep=clock.sleep)


def rewrite(folder: Path, **changes: Any) -> None:
    """As if another process had taken the lease that is there."""
    for path in (folder / "lease").iterdir():
        found = json.loads(path.read_text())
        found["process"] |= changes
        path.write_text(json.dumps(found))


def test_a_released_lease_is_taken_at_once_and_the_old_one_is_lost(tmp_path: Path) -> None:
    first = take(tmp_path)
    first.check(now=True)
    first.release()
    second = take(tmp_path)
    second.check(now=True)
    with pytest.raises(LeaseLostError, match=rf"has lost .*process {os.getpid()} on \S+ has it now"):
        first.check(now=True)
    first.release()  # of what is not its own any more
    assert second.renew()
    assert second.is_ours()


def test_a_live_holder_is_not_robbed_and_the_line_says_who_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "my-run"
    folder.mkdir()
    lease = take(folder)
    said: list[str] = []
    clock = Clock(lambda now: lease.renew() if now > 5 else None)
    with pytest.raises(RunFolderError, match=rf"run my-run, process {os.getpid()} on \S+ is alive .*delete .*lease"):
        FolderLease.take(folder, said.append, clock.time, clock.sleep)
    assert clock.now - 1000 < 6, "it is refused as soon as a heartbeat is seen"
    assert len(said) == 1
    assert "for up to 60 s" in said[0]
    assert lease.is_ours()
    assert lease.renew()


def test_a_holder_whose_process_has_ended_here_is_dead_at_once(tmp_path: Path) -> None:
    take(tmp_path)
    child = subprocess.Popen(["sleep", "60"])
    theirs = Process(**{**vars(this_process()), "pid": child.pid, "started": None})
    assert not has_ended(theirs)
    rewrite(tmp_path, pid=child.pid)
    child.kill()
    while (Path("/proc") / str(child.pid) / "stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    assert take(tmp_path).is_ours(), "one that its parent has not waited for has ended, too"
    rewrite(tmp_path, pid=child.pid)
    child.wait()
    assert take(tmp_path).is_ours()


def test_a_process_number_that_was_given_again_is_not_the_holder(tmp_path: Path) -> None:
    take(tmp_path)
    started = this_process().started
    assert started is not None
    rewrite(tmp_path, started=started - 1)
    assert take(tmp_path).is_ours()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"host": "far", "machine": "far 1 pid:[1]", "pid": 2**22 + 1}, id="another host"),
        pytest.param({"machine": "vm 1 pid:[1]", "pid": 2**22 + 1}, id="another container of the same host name"),
        pytest.param({"machine": None, "pid": 2**22 + 1}, id="a machine without a name"),
        pytest.param({}, id="a process here that hangs"),
    ],
)
def test_elsewhere_a_holder_is_dead_when_its_count_rests_for_60_s(changes: dict[str, Any], tmp_path: Path) -> None:
    lease = take(tmp_path)
    rewrite(tmp_path, **changes)
    clock = Clock()
    new = take(tmp_path, clock)
    assert DEAD_AFTER_S <= clock.now - 1000 < DEAD_AFTER_S + 1
    assert new.is_ours()
    assert not lease.is_ours()
    with pytest.raises(LeaseLostError):
        lease.renew()
    assert new.is_ours(), "what the old one does changes nothing"


def test_one_that_beats_again_after_59_s_is_alive(tmp_path: Path) -> None:
    lease = take(tmp_path)
    clock = Clock(lambda now: lease.renew() if 59 < now < 59.5 else None)
    with pytest.raises(RunFolderError, match="is alive"):
        take(tmp_path, clock)


@pytest.mark.parametrize("text", ["", "{", '{"token": "ab"}', "[]", '{"process": 3}'])
def test_a_lease_that_its_taker_did_not_finish_is_dead_after_60_s(text: str, tmp_path: Path) -> None:
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / "7").write_text(text)
    clock = Clock()
    assert take(tmp_path, clock).is_ours()
    assert clock.now - 1000 >= DEAD_AFTER_S
    (tmp_path / "lease" / "9").write_text("")
    with pytest.raises(RunFolderError, match="another run is alive"):
        take(tmp_path, Clock(lambda now: (tmp_path / "lease" / "9").write_text('{"to')))


def test_of_many_takers_of_a_dead_lease_one_has_it(tmp_path: Path) -> None:
    for number in range(30):
        folder = tmp_path / str(number)
        folder.mkdir()
        if number % 3:
            take(folder)
            rewrite(folder, started=1)
        together = threading.Barrier(6)
        got: list[Any] = []

        def taker(folder: Path = folder, together: threading.Barrier = together, got: list[Any] = got) -> None:
            clock = Clock()
            together.wait()

            def sleep(seconds: float) -> None:
                clock.sleep(seconds)
                time.sleep(1e-4)

            try:
                lease = FolderLease.take(folder, clock=clock.time, sleep=sleep)
                heartbeat = Heartbeat(lease, lambda text: None, every_s=1e-3)
                got.append((lease, heartbeat))
            except RunFolderError:
                pass

        threads = [threading.Thread(target=taker) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [lease.is_ours() for lease, _ in got].count(True) == 1
        for _, heartbeat in got:
            heartbeat.stop()


def test_a_taker_that_slept_through_two_others_spoils_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(tmp_path).release()  # 1
    slow = FolderLease(tmp_path, 2, "slow")  # has seen 1, and sleeps
    take(tmp_path).release()  # 2
    newest = take(tmp_path)  # 3; 2 is removed
    assert not slow._make()
    assert not slow.is_ours()
    assert newest.is_ours()
    assert newest.renew()
    slow._remove_older()
    assert newest.is_ours()
    assert newest.renew()
    left = sorted(path.name for path in (tmp_path / "lease").iterdir() if path.name.isdecimal())
    assert left == ["3"], "what is over is removed"


def test_whoever_deletes_the_lease_ends_its_holder(tmp_path: Path) -> None:
    lease = take(tmp_path)
    shutil.rmtree(tmp_path / "lease")
    with pytest.raises(LeaseLostError, match="it no longer exists"):
        lease.check(now=True)
    new = take(tmp_path)
    with pytest.raises(LeaseLostError, match="has it now"):
        lease.renew()
    assert new.is_ours(), "both are number 1"
    assert not lease.is_ours(), "both are number 1"


def test_a_run_goes_on_under_the_lease_of_the_process_that_took_it(tmp_path: Path) -> None:
    lease = take(tmp_path)
    pid = os.getpid()

    def holds(sent: bytes) -> None:
        theirs: FolderLease = pickle.loads(sent)
        theirs.adopt()
        if theirs.renew():
            time.sleep(60)

    child = multiprocessing.get_context("fork").Process(target=holds, args=(pickle.dumps(lease),))
    child.start()
    wait_until(lambda: not lease.renew(), 20, "it names the other process")
    with pytest.raises(RunFolderError, match=f"process {child.pid} on") as refused:
        take(tmp_path, Clock(lambda _: _beat(lease)))
    assert f"process {pid} " not in str(refused.value)
    lease.check(now=True)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert take(tmp_path).is_ours(), "the process that it names is gone; that the taker lives does not matter"


def test_a_process_that_was_stopped_for_long_finds_its_lease_lost(tmp_path: Path) -> None:
    def holds() -> None:
        lease = FolderLease.take(tmp_path)
        Heartbeat(lease, lambda text: None, every_s=0.02)
        (tmp_path / "taken").touch()
        while True:
            time.sleep(0.01)
            try:
                lease.check(now=True)
            except LeaseLostError as error:
                (tmp_path / "said").write_text(str(error))
                return

    child = multiprocessing.get_context("fork").Process(target=holds)
    child.start()
    while not (tmp_path / "taken").exists():
        time.sleep(0.01)
    with pytest.raises(RunFolderError, match=rf"process {child.pid} on \S+ is alive"):
        FolderLease.take(tmp_path)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(0.1)
    lease = FolderLease.take(tmp_path, clock=lambda: 100 * time.monotonic())  # a minute is 0.6 s
    os.kill(child.pid, signal.SIGCONT)
    child.join(timeout=20)
    assert child.exitcode == 0
    assert f"process {os.getpid()}" in (tmp_path / "said").read_text()
    assert lease.is_ours()


def _beat(lease: FolderLease) -> None:
    """As the process does that it names."""
    beat = max((lease.folder / "lease").glob("*.beat"))
    found = json.loads(beat.read_text())
    partial = beat.with_suffix(".partial")
    partial.write_text(json.dumps({**found, "count": found["count"] + 1}))
    partial.replace(beat)


def test_a_block_renews_and_releases_its_lease_in_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heartbeat.__init__, "__defaults__", (0.01,))

    def hold_and_fail() -> None:
        with held(tmp_path) as lease:
            with pytest.raises(RunFolderError, match="is alive"):
                FolderLease.take(tmp_path)
            assert lease.is_ours()
            raise KeyError

    with pytest.raises(KeyError):
        hold_and_fail()
    assert take(tmp_path).is_ours()


def test_a_full_folder_is_tried_again_and_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take(tmp_path)
    notes: list[str] = []

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folder_lease, "_as_text", full)
        heartbeat = Heartbeat(lease, notes.append, every_s=0.01)
        time.sleep(0.2)
    before = next((tmp_path / "lease").glob("*.beat")).read_text()
    time.sleep(0.2)
    heartbeat.stop()
    assert len(notes) == 1
    assert "No space left" in notes[0]
    assert next((tmp_path / "lease").glob("*.beat")).read_text() != before, "it beats again"


def test_a_place_where_nothing_can_be_written_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "lease").write_text("a file")
    with pytest.raises(RunFolderError, match="the lease cannot be taken: File exists"):
        take(tmp_path)


def losing(folder: Path) -> tuple[FolderLease, Callable[[], FolderLease]]:
    """A lease, and what gives it to another."""
    lease = take(folder)

    def lose() -> FolderLease:
        rewrite(folder, started=1)
        return take(folder)

    return lease, lose


def save(checkpoints: Checkpoints, name: str, order: int, then: Callable[[], object] = lambda: None) -> None:
    with checkpoints.writing(name, RunState(order=order, stage=name)) as folder:
        (folder / "weights.pt").write_bytes(bytes(100))
        then()


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and "lease" not in path.parts}


def test_a_checkpoint_is_not_marked_after_the_folder_was_lost_and_nothing_is_removed(tmp_path: Path) -> None:
    lease, lose = losing(tmp_path)
    old = Checkpoints(tmp_path, CheckpointConfig(keep_last=1), lambda: lease.check(now=True))
    save(old, "version-1", 1)
    new = Checkpoints(tmp_path, CheckpointConfig(keep_last=1))
    there: set[str] = set()

    def lost_meanwhile() -> None:
        lose()
        save(new, "version-2", 3)
        there.update(files_in(tmp_path))

    with pytest.raises(LeaseLostError, match="has lost the lease"):
        save(old, "version-2", 2, lost_meanwhile)
    assert there <= files_in(tmp_path)
    assert "checkpoints/version-2/COMPLETE" in there
    with pytest.raises(LeaseLostError):
        save(old, "version-3", 4)
    found = new.newest()
    assert found is not None, "the new holder's"
    assert found[1].order == 3, "the new holder's"
    save(new, "version-3", 4)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["version-3"]


def test_a_second_buffer_cannot_cut_the_record_that_the_first_appends(tmp_path: Path) -> None:
    lease, lose = losing(tmp_path)
    old = ReplayBuffer(str(tmp_path / "episodes"), lease)
    assert old.add([record(0)]) == 1
    log = tmp_path / "episodes" / "spag-1.log"
    whole = log.read_bytes()
    log.write_bytes(whole + whole[:20])  # the next record is on its way
    newer = lose()
    lease._checked_at = None  # a second later
    for stage in ("spag-1", "spag-2"):
        with pytest.raises(LeaseLostError):
            old.add([record(1, stage)])
    with pytest.raises(LeaseLostError):
        ReplayBuffer(str(tmp_path / "episodes"), lease).add([record(2)])
    assert log.read_bytes() == whole + whole[:20]
    assert not (tmp_path / "episodes" / "spag-2.log").exists()
    assert [episode.number for episode in read_log(log)] == [0]
    assert log.read_bytes() == whole + whole[:20], "reading cuts nothing"
    assert ReplayBuffer(str(tmp_path / "episodes"), newer).add([record(2)]) == 1
    assert [episode.number for episode in read_log(log)] == [0, 2]


def test_metrics_of_a_run_that_has_lost_its_folder_are_not_written(tmp_path: Path) -> None:
    lease, lose = losing(tmp_path)
    metrics = Recorder(tmp_path, check=lease.check)
    metrics.record(SetAsideLine("spag-1.log"))
    lose()
    lease._checked_at = None
    with pytest.raises(LeaseLostError):
        metrics.record(SetAsideLine("spag-2.log"))
    with pytest.raises(LeaseLostError):
        Recorder(tmp_path, check=lease.check)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    metrics.close()


def record(number: int, stage: str = "spag-1") -> bytes:
    turn = Turn(Role.ATTACKER, "x", (1,), (2,), (-0.5,), "policy", 1, 1)
    verdict = Verdict(Outcome.TIED, EndReason.UNDECIDED, 1, "time is up", None, None)
    return encode(Episode(f"{stage}/{number}", number, stage, "river", 2, "strict", 1.0, (turn,), verdict))


class Adopter:
    """Another process of the run, which adopts the lease; `fails`: and then ends with an error."""

    def __init__(self, lease: FolderLease, fails: bool = False) -> None:
        self._place = lease.folder / "lease"
        sent = pickle.dumps(lease)

        def adopt() -> None:
            theirs: FolderLease = pickle.loads(sent)
            theirs.adopt()
            if fails:
                time.sleep(0.2)
                raise SystemExit(1)
            Heartbeat(theirs, lambda text: None, every_s=0.05)
            time.sleep(60)

        self.child = multiprocessing.get_context("fork").Process(target=adopt)
        before = set(self._place.glob("*.beat"))
        self.child.start()
        wait_until(lambda: set(self._place.glob("*.beat")) != before, 20)

    def text(self) -> str:
        return max(self._place.glob("*.beat")).read_text()

    def kill(self) -> None:
        self.child.kill()
        self.child.join()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for at a release takes 0.3 s."""
    monkeypatch.setattr(folder_lease, "END_WITHIN_S", 0.3)


@pytest.mark.usefixtures("soon")
def test_a_release_leaves_the_lease_to_a_living_process_of_the_run(tmp_path: Path) -> None:
    lease = take(tmp_path)
    run = Adopter(lease)
    lease.release()
    with pytest.raises(RunFolderError, match=rf"process {run.child.pid} on \S+ is alive"):
        FolderLease.take(tmp_path)
    run.kill()
    lease.release()
    assert json.loads(run.text())["is_released"]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("lives", [True, False])
def test_a_release_writes_for_a_process_elsewhere_only_if_it_sends_no_heartbeat(
    lives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lease, "SILENT_WITHIN_S", 2.0)  # instead of 15: heartbeats come faster, too
    lease = take(tmp_path)
    rewrite(tmp_path, host="far", machine="far 1 pid:[1]")
    over = threading.Event()

    def beat() -> None:
        while lives and not over.wait(0.05):
            _beat(lease)

    far = threading.Thread(target=beat)
    far.start()
    lease.release()
    over.set()
    far.join()
    assert json.loads(max((tmp_path / "lease").glob("*.beat")).read_text())["is_released"] is not lives


def test_after_a_hand_over_the_end_of_the_block_is_not_the_end_of_the_lease(tmp_path: Path) -> None:
    began = time.monotonic()
    with held(tmp_path) as lease:
        run = Adopter(lease)
        lease.hand_over()
    assert time.monotonic() - began < folder_lease.END_WITHIN_S, "nothing is waited for"
    with pytest.raises(RunFolderError, match=rf"process {run.child.pid} on \S+ is alive"):
        FolderLease.take(tmp_path)
    run.kill()
    assert take(tmp_path).is_ours()


def test_a_process_that_fails_after_it_adopted_the_lease_frees_the_folder(tmp_path: Path) -> None:
    def start() -> None:
        with held(tmp_path) as lease:
            Adopter(lease, fails=True).child.join()
            raise KeyError

    with pytest.raises(KeyError):
        start()
    assert take(tmp_path).is_ours()
