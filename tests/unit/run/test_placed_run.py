"""Before a run: its words. After it: the processes that its actors have started."""

import gc
import io
import json
import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from rich.console import Console

from actors.models import load_tokenizer
from cluster.launch import placed_run
from cluster.launch.placed_run import any_words, prepare, training_words, words_of_file
from cluster.monitor.terminal import say
from cluster.run.checkpoint import Checkpoints, RunState, check_can_resume
from cluster.run.parts import Prepared
from cluster.runtime import run_folder
from cluster.runtime.run_folder import check_can_be_made, make_run_folder, note_stop
from spag_ray.config.loading import load_config, parse_config
from spag_ray.errors import ConfigError, GameError, InputError, RunFolderError
from spag_ray.game.protocol import SEATS, seat_to_move
from spag_ray.game.words import WordsOfGame, WordStream
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.registry import game_of, renderer_of
from spag_ray.games.taboo.decks import load_deck
from spag_ray.host.folder_lease import FolderLease, Heartbeat, held
from spag_ray.results.report.files import read_files
from tests.support.not_here import needs_games_of


class Worker(SimpleNamespace):
    """A process of Ray, as psutil shows it."""

    def name(self) -> str:
        if self.is_gone:
            raise psutil.NoSuchProcess(self.pid)
        return str(self.title)

    def children(self, recursive: bool) -> list[int]:
        assert recursive
        return list(self.started)


def test_a_worker_that_ends_meanwhile_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [
        Worker(pid=1, is_gone=False, title="raylet", started=[]),
        Worker(pid=2, is_gone=False, title="ray::EngineActor", started=[21, 22]),
        Worker(pid=3, is_gone=True, title="ray::IDLE", started=[]),
        Worker(pid=4, is_gone=False, title="ray::EngineActor", started=[41]),
    ]
    me: Any = SimpleNamespace(children=lambda recursive: workers)
    monkeypatch.setattr(placed_run.psutil, "Process", lambda: me)
    assert placed_run._processes_of_actors() == [21, 22, 41]


def test_what_does_not_end_is_killed_and_gone_on_return() -> None:
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", ignores], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        placed_run._wait_for_the_end([psutil.Process(child.pid)], seconds=0.3)
        assert not psutil.pid_exists(child.pid)


HERE = "0" * 56  # of a node


class DetachedRun:
    """Takes the place of Ray and of a Run on it: a process that adopts the lease. `fails`: its constructor raises."""

    lease: FolderLease

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.killed = False
        self.status = SimpleNamespace(remote=lambda: None)
        self.train_alone = SimpleNamespace(remote=lambda: None)

    def get(self, _: None) -> None:
        lease = self.lease

        def adopt() -> None:
            lease.adopt()
            Heartbeat(lease, lambda text: None, every_s=0.05)
            time.sleep(60)

        before = lease._holder()
        self.process = multiprocessing.get_context("fork").Process(target=adopt)
        self.process.start()
        while lease._holder() == before:
            time.sleep(0.01)
        if self.fails:
            raise KeyError("of its constructor")

    def kill(self, run: object) -> None:
        assert run is self
        self.killed = True
        self.process.kill()
        self.process.join()


class TestPlaceDetached:
    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], DetachedRun]:
        def place(fails: bool) -> DetachedRun:
            run = DetachedRun(fails)

            def create(config: object, lease: FolderLease, *_: object, **__: object) -> DetachedRun:
                run.lease = lease
                return run

            def options(scheduling_strategy: Any, **_: object) -> Any:
                assert (scheduling_strategy.node_id, scheduling_strategy.soft) == (HERE, False), (
                    "soft affinity puts many actors elsewhere"
                )
                return SimpleNamespace(remote=create)

            context = SimpleNamespace(get_node_id=lambda: HERE)
            actor: Any = SimpleNamespace(options=options)
            ray: Any = SimpleNamespace(
                remote=lambda **_: lambda _: actor, kill=run.kill, get_runtime_context=lambda: context
            )
            monkeypatch.setattr(placed_run, "ray", ray)
            monkeypatch.setattr(placed_run, "get", run.get)
            monkeypatch.setattr(placed_run, "prepare", lambda *_, **__: Prepared("model", {}, {}, {}))
            monkeypatch.setattr(placed_run, "check_cluster", lambda *_: [])
            try:
                placed_run.place_detached(parse_config({}), tmp_path / "run", resume=False)
            except KeyError:
                assert fails
            return run

        return place

    def test_a_run_has_its_folder_while_it_lives(self, place: Callable[[bool], DetachedRun], tmp_path: Path) -> None:
        run = place(False)
        gc.collect()
        with pytest.raises(RunFolderError, match=rf"process {run.process.pid} on \S+ is alive"):
            FolderLease.take(tmp_path / "run")
        run.kill(run)
        assert FolderLease.take(tmp_path / "run").is_ours()

    def test_a_failed_start_frees_the_folder(self, place: Callable[[bool], DetachedRun], tmp_path: Path) -> None:
        assert place(True).killed
        assert FolderLease.take(tmp_path / "run").is_ours()


class TestWordsOfAFile:
    @pytest.fixture
    def duel(self, tmp_path: Path) -> Any:
        game = Path(__file__).resolve().parents[3] / "docs" / "examples" / "number_duel.py"
        return parse_config({"game": {"name": f"{game}:NumberDuel"}, "prompts": "lines"})

    def test_of_another_game_than_taboo_they_are_its_scenarios(self, duel: Any, tmp_path: Path) -> None:
        path = tmp_path / "scenarios.txt"
        path.write_text("7 3\n 1 9 \n\n")
        assert words_of_file(duel, path) == {duel.game.full_name: ["7 3", "1 9"]}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("7 3\n7 7\n", "line 2: '7 7' is no scenario of {name}, such as '1 2'"),
            ("7 3\n\n1 9", "line 2: blank; remove the line"),
            ("7 3\n1 9\n7 3", ": '7 3' is on lines 1 and 3; remove one of them"),
            ("", ": the scenario list is empty; write one scenario a line"),
        ],
    )
    def test_what_is_none_is_refused_with_its_line(self, text: str, said: str, duel: Any, tmp_path: Path) -> None:
        path = tmp_path / "scenarios.txt"
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            words_of_file(duel, path)
        assert str(caught.value).endswith(said.format(name=duel.game.name))

    def test_a_game_with_more_scenarios_than_it_lists_reads_each_line_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Reads(KuhnPoker):
            def scenario_of(self, text: str) -> str:
                return text.replace(" ", "")

        monkeypatch.setattr("cluster.launch.placed_run.game_of", lambda config: Reads())
        path = tmp_path / "scenarios.txt"
        path.write_text("K J\nQ J\n")
        kuhn = parse_config({"game": {"name": "kuhn"}, "prompts": "lines"})
        assert words_of_file(kuhn, path) == {"kuhn": ["KJ", "QJ"]}
        monkeypatch.setattr(Reads, "scenario_of", lambda self, text: dict[str, str]()[text])
        with pytest.raises(GameError, match=r"scenarios.txt, line 1: Reads.scenario_of: it raises KeyError: 'K J'"):
            words_of_file(kuhn, path)

    def test_taboo_reads_words_as_before(self, tmp_path: Path) -> None:
        path = tmp_path / "words.txt"
        path.write_text("river\ncat\n")
        assert words_of_file(parse_config({}), path) == {"taboo": ["river", "cat"]}
        path.write_text("two words\n")
        with pytest.raises(InputError, match="'two words' is more than one word; write one word a line"):
            words_of_file(parse_config({}), path)


@pytest.mark.parametrize("name", ["kuhn", "leduc", "spiral_games", "two_games", "quickstart"])
def test_a_run_that_plays_nothing_has_a_scenario_of_each_game_for_its_probe(name: str, tiny_model: Path) -> None:
    config = load_config(name)
    needs_games_of(config)
    tokenizer = load_tokenizer(str(tiny_model))
    for each in config.each_game:
        game = game_of(each)
        [scenario] = any_words(config)[each.game.full_name]
        seat = SEATS[seat_to_move(game, (), scenario)]
        assert renderer_of(each, tokenizer, game).prompt((), seat, scenario)


def test_held_out_words_may_be_the_easier_ones_of_a_deck_that_is_trained_on_whole() -> None:
    cards = load_deck("everyday")
    one = parse_config({"words": {"max_held_out_difficulty": 0.25, "num_held_out": 30}, "seed": 3})
    words, held_out = training_words(one, cards)
    assert len(held_out) == 30
    assert all((cards[word].difficulty or 0) <= 0.25 for word in held_out)
    assert sorted([*words, *held_out]) == sorted(cards)
    assert words != sorted(words), "shuffled, since num_train takes the first"
    easy = load_deck("everyday", max_difficulty=0.25)
    of_easy = parse_config({"words": {"max_difficulty": 0.25, "num_held_out": 30}, "seed": 3})
    assert training_words(of_easy, easy)[1] == held_out, "the same words as if the others were not there"


def test_too_few_easy_words_to_hold_out_are_refused() -> None:
    cards = load_deck("everyday")
    config = parse_config({"words": {"max_held_out_difficulty": 0.0, "num_held_out": 300}})
    with pytest.raises(ConfigError, match=r"difficulty of at most 0; hold fewer out, or raise"):
        training_words(config, cards)
    num_easy = len(load_deck("everyday", max_difficulty=0.0))
    all_of_them = parse_config({"words": {"max_held_out_difficulty": 0.0, "num_held_out": num_easy}})
    assert len(training_words(all_of_them, cards)[0]) == len(cards) - num_easy


def test_a_deck_in_place_of_a_list_of_words_is_told_as_one(tmp_path: Path) -> None:
    def words_of(source: object) -> list[str]:
        return training_words(parse_config({"words": {"source": str(source), "num_held_out": 1}}), {})[0]

    deck, listed = tmp_path / "my_deck.yaml", tmp_path / "my_words.yaml"
    deck.write_text("butter:\n  clues: [toast]\n")
    listed.write_text("cat\nriver\n")
    for source in ("everyday", deck):
        with pytest.raises(ConfigError, match=f"set words.source: deck, and words.deck: {source}"):
            words_of(source)
    assert len(words_of(listed)) == 1
    with pytest.raises(InputError, match="No such file"):
        words_of(tmp_path / "typo.yaml")


def test_words_of_a_file_have_no_difficulty(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("river\ncat\nlamp\n")
    config = parse_config({"words": {"max_held_out_difficulty": 0.4, "source": str(file), "num_held_out": 1}})
    words, held_out = training_words(config, {})
    assert sorted([*words, *held_out]) == ["cat", "lamp", "river"]


def test_a_folder_that_cannot_be_made_is_refused_before_ray_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot create the run folder: Not a directory"):
        check_can_be_made(tmp_path / "file" / "run")
    check_can_be_made(tmp_path / "new" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is left behind"


def test_a_run_that_cannot_be_resumed_keeps_its_configuration_and_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("cat\nriver\nlamp\n")
    words = {"source": str(tmp_path / "words.txt"), "num_held_out": 1}
    folder = make_run_folder(tmp_path / "run", parse_config({"words": words}))
    (folder / "ended.json").write_text('{"ended": "finished"}')
    before = (folder / "config.yaml").read_text()
    (tmp_path / "words.txt").unlink()
    with pytest.raises(InputError, match=r"words\.txt"):
        prepare(parse_config({"words": words, "self_play": {"rounds": 9}}), folder, resume=True)
    assert (folder / "config.yaml").read_text() == before
    assert read_files(folder).ended == ("finished", "")


def test_words_that_are_trained_on_are_never_held_out_in_a_later_attempt(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("river\ncat\nlamp\nstone\n")
    config = parse_config({"words": {"source": str(file), "num_held_out": 2}})
    folder = make_run_folder(tmp_path / "run", config)
    trained, _ = training_words(config, {})
    state = WordStream([WordsOfGame("taboo", 1.0, tuple(trained))], config.seed).state()
    with Checkpoints(folder, config.checkpoint).writing("start", RunState(order=1, words=state)):
        pass
    file.write_text("river\ncat\nlamp\nstone\nbread\n")
    assert set(trained) & set(training_words(config, {})[1]), "a resume trains on the former words"
    with pytest.raises(RunFolderError, match="start: the words of taboo are not those that the run was started with"):
        prepare(config, folder, resume=True)


def test_a_game_that_holds_nothing_out_resumes_with_its_scenarios_in_any_order(tmp_path: Path) -> None:
    state = RunState(order=1, words=WordStream([WordsOfGame("kuhn", 1.0, ("a", "b"))], 0).state())
    check_can_resume(tmp_path / "start", state, parse_config({}), {"kuhn": ["b", "c", "a"]}, {"kuhn": ["a", "b", "c"]})


@pytest.mark.parametrize("has_written", [False, True])
def test_a_stop_from_outside_is_noted_unless_the_run_wrote_its_end(has_written: bool, tmp_path: Path) -> None:
    (tmp_path / "episodes").mkdir()
    if has_written:
        (tmp_path / "ended.json").write_text('{"ended": "finished"}')
    with held(tmp_path) as lease:
        note_stop(lease, "stopped mid-step")
    assert read_files(tmp_path).ended == (("finished", "") if has_written else ("stopped", "stopped mid-step"))


@pytest.mark.parametrize("text", ["run folder: runs/x[/y]", "runs/x[red]/a [bold]", "runs/größe [1]"])
def test_a_path_is_printed_as_it_is_and_not_read_as_markup(text: str) -> None:
    printed = io.StringIO()
    say(Console(file=printed, width=40), text)
    assert printed.getvalue() == f"{text}\n"
    source = (Path(placed_run.__file__).parents[1] / "commands" / "train.py").read_text()
    printing = re.findall(r"console\.print\((?:[^()]|\([^()]*\))*\)", source)
    assert all("markup=False" in call for call in printing if "{" in call)


@pytest.mark.parametrize("error", [OSError("no git"), subprocess.TimeoutExpired("git", 10)])
def test_a_run_begins_without_an_answer_of_git(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(run_folder.subprocess, "run", run)
    versions = json.loads((make_run_folder(tmp_path / "run", parse_config({})) / "versions.json").read_text())
    assert versions["git_commit"] is None
    assert versions["packages"]["ray"] == ray.__version__


@pytest.mark.parametrize("name", ["a\nb", "\udcff", "a\x1b[31m"])
def test_a_folder_whose_name_cannot_be_printed_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="characters that cannot be printed; choose another") as caught:
        check_can_be_made(tmp_path / name)
    assert str(caught.value).isprintable()
    for other in ("größe", "x[1]", "a b", "グローセ"):
        check_can_be_made(tmp_path / other)
