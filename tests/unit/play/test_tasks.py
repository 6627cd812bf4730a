"""What a run does in threads: an error in one of them ends the run."""

import threading

import pytest

from cluster.supervision.tasks import Tasks


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


def test_work_is_done_again_and_again_until_the_tasks_stop(tasks: Tasks) -> None:
    done, enough = [0], threading.Event()

    def work() -> None:
        done[0] += 1
        if done[0] == 3:
            enough.set()

    tasks.every(0.01, work, "work")
    assert enough.wait(5)
    tasks.stop()
    tasks.check()
    before = done[0]
    assert not threading.Event().wait(0.05)
    assert done[0] == before


def test_the_error_of_work_is_raised_by_the_next_check_and_ends_the_work(tasks: Tasks) -> None:
    done: list[int] = []

    def work() -> None:
        done.append(len(done))
        raise ValueError("no such node")

    tasks.every(0.0, work, "work")
    for thread in list(tasks._threads):
        thread.join(5)
    with pytest.raises(ValueError, match="no such node"):
        tasks.check()
    assert done == [0]


def test_every_thread_that_is_started_together_is_returned_and_kept(tasks: Tasks) -> None:
    begin, returned = threading.Barrier(8), []

    def start(number: int) -> None:
        begin.wait()
        returned.append((f"work-{number}", tasks.start(f"work-{number}", lambda: None).name))

    starters = [threading.Thread(target=start, args=(number,)) for number in range(8)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(5)
    assert len(returned) == 8
    assert all(asked == name for asked, name in returned)
