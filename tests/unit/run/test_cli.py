"""Bad input at the command line: one clear line, exit code 2, no traceback, nothing overwritten."""

import errno
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.console import Console

import spag_ray.__main__
from cluster.cli import app
from cluster.commands.evaluate import with_tasks
from cluster.commands.match import MatchWanted, run_match
from cluster.guarded import FLOORS, run_guarded
from cluster.runtime.run_folder import make_run_folder
from cluster.schedules.tournament import Entrant
from spag_ray import __version__
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import RunFolderError, extra
from spag_ray.game.rules import Outcome
from spag_ray.results.matches import Game, Match, read_matches, write_matches
from tests.support.tiny_model import TARGETS, make_tiny_model


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checks_here: None) -> Any:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> str:
        """The one line that a refused command prints."""

        def command(**options: Any) -> None:
            app(list(arguments), **options)

        capsys.readouterr()  # what making the model printed
        assert run_guarded(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert error.startswith("spag-ray: ")
        assert "Traceback" not in error
        return error

    return call


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(TARGETS) + "\n")
    return path


def tiny(model: Path, words: Path, *more: str) -> list[str]:
    options = [
        f"model={model}",
        f"words.source={words}",
        "words.num_held_out=2",
        *(more or ["engine.max_model_len=512"]),
    ]
    return [part for option in options for part in ("-o", option)]


def train(model: Path, words: Path, *more: str) -> list[str]:
    return ["train", "quickstart", *tiny(model, words, "imitation.enabled=false", *more), "--run-dir", "run"]


def test_commands_for_one_game_say_which_games_a_configuration_has(run: Any, tmp_path: Path) -> None:
    for command in (
        ["play", "two_games", "--out", "games.json"],
        ["serve", "smollm2-135m-instruct", "--config", "two_games"],
    ):
        assert "this configuration has the games taboo, kuhn; choose one of them with --game" in run(*command)
        assert "has the games taboo, kuhn, not chess; choose" in run(*command, "--game", "chess")
    matching = ["match", "two_games", "--player", "a=scripted", "--words", "words.txt", "--out", "matches.json"]
    assert "words.txt: a file has the words of one game, but this configuration has the games taboo, kuhn" in run(
        *matching
    )
    assert "game and games are both set" in run("doctor", "two_games", "-o", "game.max_turns=3")


def test_a_missing_or_empty_words_file_is_named(run: Any, tiny_model: Path, tmp_path: Path) -> None:
    assert "nowhere.txt" in run(*train(tiny_model, tmp_path / "nowhere.txt"))
    (tmp_path / "empty.txt").write_text("\n\n")
    assert "empty.txt" in run(*train(tiny_model, tmp_path / "empty.txt"))


@pytest.mark.parametrize(("text", "named"), [("river\npiano\nriver\n", "river"), ("river\nice cream\n", "ice cream")])
def test_duplicates_and_spaces_in_a_words_file_are_named(
    run: Any, tiny_model: Path, tmp_path: Path, text: str, named: str
) -> None:
    (tmp_path / "w.txt").write_text(text)
    assert named in run(*train(tiny_model, tmp_path / "w.txt"))


def test_a_missing_config_names_the_shipped_ones(run: Any) -> None:
    assert "quickstart" in run("train", "quickstrat.yaml")


def test_a_folder_in_place_of_a_config_is_told(run: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    error = run("train", "mine")
    assert "mine is no plain file; give the path of one, or a shipped one (" in error
    assert "did you mean" not in error
    (tmp_path / "mine" / "config.yaml").touch()
    assert run("train", "mine").rstrip().endswith("; did you mean `mine/config.yaml`?")
    assert "/dev/null is no plain file" in run("words", "check", "/dev/null")


def test_a_model_folder_without_a_tokenizer_is_named(run: Any, words: Path, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "bare")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (model / file).unlink()
    assert "no tokenizer" in run(*train(model, words))
    assert "no such model folder" in run(*train(tmp_path / "absent", words))


def test_a_model_without_a_chat_template_is_told_of_flat_prompts(run: Any, words: Path, tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base", chat_template=None)
    assert "has no chat template" in run(*train(base, words, "prompts=chat"))


def test_a_prompt_that_leaves_no_room_is_refused_with_what_would_fit(run: Any, tiny_model: Path, words: Path) -> None:
    assert "engine.max_model_len" in run(*train(tiny_model, words, "engine.max_model_len=100"))


def test_an_existing_run_folder_is_not_touched(run: Any, tiny_model: Path, words: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("keep")
    assert "--run-dir" in run(*train(tiny_model, words))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]


def test_a_malformed_json_line_is_named(run: Any, tmp_path: Path) -> None:
    good = json.dumps({"history": [], "target_word": "cat", "max_turns": 3})
    (tmp_path / "games.json").write_text(good + "\n" + good[:-3] + "\n")
    error = run("reward", "games.json", "out.json")
    assert "games.json" in error
    assert "line 2" in error
    assert not (tmp_path / "out.json").exists()


def test_turns_that_do_not_alternate_are_named(run: Any, tmp_path: Path) -> None:
    turn = {"role": "attacker", "content": "It purrs."}
    (tmp_path / "games.json").write_text(json.dumps([{"history": [turn, turn], "target_word": "cat", "max_turns": 3}]))
    assert "turn 1" in run("reward", "games.json", "out.json")


def test_eval_without_tasks_says_how_to_name_some(run: Any, tiny_model: Path) -> None:
    assert "--tasks" in run("eval", "quickstart", "--model", str(tiny_model), "-o", "evaluation.tasks=[]")
    assert "--tasks" in run("eval", "quickstart", "--model", str(tiny_model), "--tasks", " , ")


def test_names_of_tasks_may_have_spaces_after_their_commas() -> None:
    config = with_tasks(parse_config({}), None, " one, two,", limit=None, num_fewshot=None, downloads=False)
    assert config.evaluation.tasks == ("one", "two")


def test_tasks_are_looked_for_before_anything_starts(run: Any, tiny_model: Path, words: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "far.yaml").write_text(
        "task: far_away\ndataset_path: nobody/has\noutput_type: generate_until\n"
    )
    own = ["evaluation.include_path=own", "evaluation.tasks=[far_away]"]
    assert "Hugging Face hub" in run(*train(tiny_model, words, *own))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["report", "watch", "compare", "serve", "train", "words check", "game new"])
def test_a_path_that_the_disk_refuses_is_one_line(run: Any, command: str) -> None:
    assert "File name too long; check the path" in run(*command.split(), "a" * 300)


def test_what_the_disk_refuses_is_one_line_and_what_no_user_can_mend_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    def command(error: OSError, **_: Any) -> None:
        raise error

    assert run_guarded(partial(command, OSError(errno.ENOSPC, "No space left on device"))) == 2
    assert capsys.readouterr().err.startswith("spag-ray: No space left on device; check the path")
    of_ray = type("RayTaskError", (OSError,), {})  # of another process
    for error in (FileNotFoundError(errno.ENOENT, "gone", "own.py"), of_ray(errno.ENOSPC, "full")):
        with pytest.raises(OSError, match=str(error.strerror)):
            run_guarded(partial(command, error))


def test_what_a_library_says_as_it_ends_the_program_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def command(code: object, **_: Any) -> None:
        raise SystemExit(code)

    for code, expected in ((None, 0), (3, 3), ("no\nlicence", 1)):
        assert run_guarded(partial(command, code)) == expected
    assert capsys.readouterr().err == "spag-ray: no licence\n"


def test_a_user_who_is_not_here_has_no_folder(run: Any) -> None:
    assert "~nobody-123/m: no such model folder" in run("train", "quickstart", "-o", "model=~nobody-123/m")
    assert "~nobody-123/m: no such model folder" in run("serve", "~nobody-123/m")


def test_a_game_is_not_written_into_a_file(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("keep")
    assert "file: no game can be written there: File exists" in run("game", "new", "my_own", "--out", "file")


def test_nothing_is_overwritten(run: Any, tmp_path: Path) -> None:
    (tmp_path / "games.json").write_text("[]")
    (tmp_path / "out.json").write_text("keep")
    assert "out.json" in run("reward", "games.json", "out.json")
    assert (tmp_path / "out.json").read_text() == "keep"


def test_a_chat_template_is_refused_where_plain_text_is_written(run: Any, tmp_path: Path) -> None:
    (tmp_path / "games.json").write_text(json.dumps([{"history": [], "target_word": "cat", "max_turns": 3}]))
    error = run("reward", "games.json", "out.json", "--prompts", "chat")
    assert "--prompts chat: the training-data format holds plain text" in error
    assert "`flat`" in error


def test_quickstart_trains_into_the_next_free_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[str, int, Path]] = []

    def note(config: RunConfig, folder: Path, *_: Any) -> None:
        started.append((config.name, config.self_play.rounds, folder))
        folder.mkdir(parents=True)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cluster.commands.train.run_training", note)
    for _ in range(3):
        assert exit_code("quickstart", "-o", "self_play.rounds=1") == 0
    assert started == [("quickstart", 1, Path("runs") / name) for name in FREE]
    assert capsys.readouterr().out.splitlines() == [
        f"Earlier quickstart runs are kept in runs/; this one goes to runs/{name}" for name in FREE[1:]
    ]
    assert exit_code("quickstart", "--dry-run") == 0
    assert "imitat" in capsys.readouterr().out
    assert len(started) == 3


FREE = ("quickstart", "quickstart-2", "quickstart-3")


def test_a_path_that_a_command_prints_can_be_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / ("a" * 120) / ":cat:.txt"
    out.parent.mkdir()
    assert run_guarded(lambda **options: app(["words", "--out", str(out), "--top", "10"], **options)) == 0
    assert capsys.readouterr().out == f"10 words in {out}\n"


def test_words_writes_a_list_that_train_accepts(tmp_path: Path) -> None:
    from spag_ray.game.words import read_words

    assert run_guarded(lambda **options: app(["words", "--top", "50", "--out", str(tmp_path / "w")], **options)) == 0
    assert len(read_words(tmp_path / "w")) == 50


@pytest.mark.parametrize(
    "command", [("play",), ("match", "--player", "a=scripted", "--player", "b=scripted")], ids=lambda c: c[0]
)
def test_words_of_another_game_are_its_scenarios(command: tuple[str, ...], run: Any, tmp_path: Path) -> None:
    (tmp_path / "deals.txt").write_text("KJ\nK J\n")
    error = run(command[0], "kuhn", *command[1:], "--words", "deals.txt", "--out", "games.json")
    assert "deals.txt, line 2: 'K J' is no scenario of kuhn, such as '" in error


def test_words_without_a_file_to_write_says_what_there_is(run: Any) -> None:
    assert "spag-ray words check FILE" in run("words", "--top", "5")


def exit_code(*arguments: str) -> int:
    return run_guarded(lambda **options: app(list(arguments), **options))


def test_words_check_names_every_fault_as_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("Butter:\n  clues: [toast]\nriver:\n  clues: ['[bold]', rivers, water, water]\n  colour: 1\n")
    assert exit_code("words", "check", str(path)) == 2
    assert capsys.readouterr().out.splitlines() == [
        f"{path}:1: 'Butter' is not one lower-case word: write 'butter'. The referee reads English and compares words "
        "in lower case, so a German noun or a name is the same word with and without its capital",
        f"{path}:3: river: 4 clues; write at least 10",
        f"{path}:4: river: the clue 'rivers' breaks the rules: the attacker said 'rivers' (target word 'river')",
        f"{path}:4: river: the clue 'water' is there twice",
        f"{path}:5: river: unknown key 'colour'; an entry has clues, traps, difficulty",
    ]


def test_words_check_finds_a_shipped_deck_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("words", "check", "everyday") == 0
    assert "words, no faults" in capsys.readouterr().out


def test_doctor_wants_a_configuration_or_a_known_shape_of_gpu_check(run: Any) -> None:
    assert "name one (or ask for --gpu)" in run("doctor")
    assert "there are tiny, smollm2-135m, qwen2.5-0.5b" in run("doctor", "--gpu", "--shape", "gpt-5")


def test_words_check_of_no_deck_is_one_line(run: Any, tmp_path: Path) -> None:
    assert "no such file" in run("words", "check", "absent")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\x00")
    assert "cannot read the deck" in run("words", "check", "binary.yaml")


def test_a_run_without_its_extra_or_deck_is_one_line(
    run: Any, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("river:\n  clues: [water]\nRiver:\n  clues: [bank]\n")
    of_deck = train(tiny_model, Path("deck"))
    assert "own.yaml:3: 'River'" in run(*of_deck, "-o", "words.deck=own.yaml")
    assert "none of the shipped ones (everyday)" in run(*of_deck, "-o", "words.deck=absent")
    monkeypatch.setattr("spag_ray.games.taboo.decks._DATA_FILE", Path("not") / "installed")
    assert extra("textarena") in run(*train(tiny_model, Path("textarena")))


@pytest.mark.parametrize("arguments", [["words", "--top", "5", "--out", "w"], ["watch", "run", "--once"]])
def test_what_needs_neither_torch_nor_ray_imports_neither(arguments: list[str], tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    (tmp_path / "run").symlink_to(root / "tests" / "golden" / "run_folders" / "rounds")
    script = (
        "import sys; from cluster.cli import app, run_guarded\n"
        f"assert run_guarded(lambda **options: app({arguments}, **options)) == 0\n"
        "print('imported:', [name for name in ('torch', 'ray', 'transformers') if name in sys.modules])"
    )
    environment = {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "imported: []" in done.stdout, done.stderr


def helps(command: Any, path: str = "spag-ray") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from helps(each, f"{path} {name}")


EVERY_COMMAND = dict(helps(typer.main.get_command(app)))


@pytest.mark.parametrize("path", EVERY_COMMAND)
def test_a_help_page_has_every_character_of_its_texts(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich takes text in square brackets for markup, and leaves it out, unless a backslash is before it."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 1000)
    command = EVERY_COMMAND[path]
    assert exit_code(*path.split()[1:], "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    texts = [command.help, *(getattr(each, "help", None) for each in command.params)]
    texts += [each.get_short_help_str(1000) for each in getattr(command, "commands", {}).values()]
    for text in filter(None, texts):
        assert " ".join(text.replace("\\[", "[").split()) in shown, text


@pytest.mark.parametrize("arguments", [("--version",), ("--version", "train")])
def test_the_version_is_printed(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*arguments) == 0
    assert capsys.readouterr().out == f"spag-ray {__version__}\n"


def test_a_match_without_a_file_has_one_of_its_own_in_runs(
    run: Any, tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.commands.match.make_run_folder", lambda folder, _: refuse(folder))
    players = ("--player", f"a={tiny_model}", "--player", "b=scripted")
    where = run("match", "quickstart", *players, *tiny(tiny_model, words, "engine.max_model_len=512"))
    assert re.fullmatch(r"spag-ray: runs/match-\d{8}-\d{6}\.json\.run\n", where)


def test_an_interrupted_command_can_be_called_again(
    run: Any, tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.commands.play.make_run_folder", lambda folder, _: refuse(folder))
    (tmp_path / "games.json.run").mkdir()
    said = run(
        "play",
        "quickstart",
        "--out",
        str(tmp_path / "games.json"),
        *tiny(tiny_model, words, "engine.max_model_len=512"),
    )
    assert said == f"spag-ray: {tmp_path / 'games.json.run-2'}\n"


def test_an_interrupted_match_keeps_what_was_played(
    tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = [Match("a", "b", (Game("river", Outcome.TIED, 8),))]

    @contextmanager
    def interrupted(_: RunConfig, folder: Path, *__: Any, **___: Any) -> Iterator[None]:
        write_matches(folder / "matches.json", played)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("cluster.commands.match.placed_run", interrupted)
    for check in ("in_a_process", "check_playing"):
        monkeypatch.setattr(f"cluster.commands.match.{check}", lambda *_, **__: None)
    config = parse_config({"model": str(tiny_model), "words": {"source": str(words), "num_held_out": 2}})
    out = tmp_path / "matches.json"
    with pytest.raises(KeyboardInterrupt):
        run_match(config, MatchWanted(("a=scripted", "b=scripted"), out=out), Console(quiet=True))
    assert [match.key for match in read_matches(out)] == [("a", "b", "taboo")]
    assert read_matches(out)[0].models == ("scripted", "scripted")


def test_the_base_of_a_runs_stages_is_the_runs(
    run: Any, tiny_model: Path, other_tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def entrants(folder: Path, config: RunConfig) -> list[Entrant]:
        found.append(config.model)
        raise RunFolderError("enough")

    monkeypatch.setattr("cluster.commands.match.entrants_of_run", entrants)
    make_run_folder(tmp_path / "run", parse_config({"model": str(other_tiny_model)}))
    assert run("match", "quickstart", "-o", f"model={tiny_model}", "--stages", str(tmp_path / "run")).endswith(
        "enough\n"
    )
    assert found == [str(other_tiny_model)]


def test_a_runs_matches_are_not_of_words_that_it_was_trained_on(
    run: Any, tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report, its model cards and `compare` take what is in its matches.json for results on held-out words."""
    monkeypatch.setattr("cluster.commands.match.entrants_of_run", lambda *_: [Entrant("spag-1", str(tiny_model))])
    monkeypatch.setattr("cluster.commands.match.make_run_folder", lambda folder, _: refuse(folder))
    settings = {"model": str(tiny_model), "words": {"source": str(words), "num_held_out": 2}, "seed": 3}
    make_run_folder(tmp_path / "run", parse_config(settings))
    match = ("match", "quickstart", "--stages", "run", *tiny(tiny_model, words, "engine.max_model_len=512"))
    assert run(*match).startswith("spag-ray: run was trained on 2 of the 2 scenarios of taboo, such as ")
    assert run(*match, "-o", "seed=3").startswith("spag-ray: run/matches.json.run")
    assert run(*match, "--out", "apart.json").startswith("spag-ray: apart.json.run")


def test_a_runs_own_configuration_is_not_overridden(run: Any, tiny_model: Path, tmp_path: Path) -> None:
    make_run_folder(tmp_path / "run", parse_config({"model": str(tiny_model)}))
    for more in (("--config", "kuhn"), ("-o", "seed=3")):
        assert "leave out --config and -o" in run("exploitability", str(tmp_path / "run"), *more)


def refuse(folder: Path) -> None:
    raise RunFolderError(str(folder))


@pytest.mark.parametrize("command", ["match", "play", "eval"])
def test_what_only_plays_is_checked_before_anything_starts(
    run: Any, tiny_model: Path, words: Path, tmp_path: Path, command: str
) -> None:
    more = {"match": ("--player", f"a={tiny_model}"), "play": ("--out", "p.json"), "eval": ("--tasks", "paper")}
    wrong = tiny(tiny_model, words, "engine.vllm={enforce_eagre: true}")
    said = run(command, "quickstart", *wrong, *more[command], *(("--out", "e.json") if command == "eval" else ()))
    assert "engine.vllm.enforce_eagre" in said
    assert not list(tmp_path.glob("*.run"))


def test_rows_to_learn_from_are_checked_before_the_pass(
    run: Any, tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.commands.learn.make_run_folder", lambda folder, _: refuse(folder))
    row = {"type": "spag", "query": "water " * 600, "target": "t", "reward": 1.0, "weight": 1.0, "role": "attacker"}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    options = tiny(tiny_model, words, "learner.max_tokens_per_microbatch=512")
    said = run("learn", "quickstart", "--method", "imitation", "--data", "rows.json", "--out", "model", *options)
    assert "row 0 has 6" in said


def test_no_remedy_names_a_package_that_no_index_has() -> None:
    """`pip install spag-ray[...]` finds nothing; a checkout or a wheel works."""
    root = Path(__file__).resolve().parents[3]
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "docs").rglob("*.ipynb")]
    sources = [path for floor in FLOORS for path in (root / floor).rglob("*.py")]
    named = [path for path in [*pages, *sources] if re.search(r"spag[-_]ray\[", path.read_text(encoding="utf-8"))]
    assert named == []


def test_several_runs_are_watched_on_a_page_alone(run: Any, tmp_path: Path) -> None:
    said = run("watch", str(tmp_path / "a"), str(tmp_path / "b"))
    assert "add --web" in said
    assert "--no-browser are of the page: add --web" in run("watch", str(tmp_path), "--port", "9000")


def test_a_run_is_served_with_its_own_configuration_alone(run: Any, tmp_path: Path) -> None:
    make_run_folder(tmp_path / "run", RunConfig())
    assert "is of a run, which has its own configuration" in run("serve", str(tmp_path / "run"), "--config", "kuhn")


def test_a_page_beyond_loopback_has_to_be_wanted(run: Any, tmp_path: Path) -> None:
    assert "--allow-network" in run("watch", str(tmp_path), "--web", "--host", "0.0.0.0")
    assert "no such folder" in run("watch", str(tmp_path / "none"), "--web")
    assert "named twice" in run("watch", str(tmp_path), f"{tmp_path}/", "--web")


def test_a_run_goes_on_when_whoever_reads_its_output_has_gone() -> None:
    code = (
        "import time; from cluster.cli import _RunConsole, _console; console = _console(_RunConsole)\n"
        "for _ in range(4): console.print('a line'); time.sleep(0.1)\n"
        "import sys; print('to the end', file=sys.stderr)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read().strip() == "to the end"
    assert process.wait(20) == 0


def test_an_interrupt_while_the_command_line_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupts:
        def find_spec(self, *_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "cluster.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupts()])
    with pytest.raises(SystemExit, match=r"^130$"):
        spag_ray.__main__.main()
    assert capsys.readouterr().err == "Aborted.\n"
