"""Games are found by name, in files and in other packages; what is no game is refused in one line."""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from spag_ray.config.loading import load_config, parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, GameError
from spag_ray.game.game_form import check_form
from spag_ray.game.protocol import Game
from spag_ray.game.rules import Role
from spag_ray.games import registry
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.registry import game_of, load_game, module_to_send, renderer_of, scenarios_of
from tests.support.families import tokenizer_of

GAME = """
from spag_ray.game.protocol import win


class Mine:
    seats, max_turns, is_exhaustive = ("one", "two"), 1, True

    def scenarios(self):
        return ["{scenario}"]

    def messages(self, seat, history, scenario):
        return [{{"role": "user", "content": scenario}}]

    def rule(self, history, scenario):
        return win(0)


class Picky(Mine):
    def __init__(self, words):
        self.words = words


class Trio(Mine):
    seats = ("one", "two", "three")


constant = 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with games/mine.py and mine_here.py; modules that are loaded from it are forgotten."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "mine.py").write_text(GAME.format(scenario="red"))
    (tmp_path / "mine_here.py").write_text(GAME.format(scenario="blue"))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def entries(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Installed packages that offer these games."""
    found = EntryPoints(EntryPoint(name, value, registry.GROUP) for name, value in values.items())
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == registry.GROUP else EntryPoints())


def test_a_shipped_game_is_found_by_its_name_and_made_anew_each_time() -> None:
    one, other = load_game("kuhn"), load_game("kuhn")
    assert isinstance(one, KuhnPoker)
    assert one is not other


@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("games/mine.py:Mine", "red"),
        ("./games/mine.py:Mine", "red"),
        ("games.mine:Mine", "red"),
        ("mine_here:Mine", "blue"),
    ],
)
def test_a_users_class_is_found_by_file_or_module_in_the_current_folder(name: str, scenario: str, folder: Path) -> None:
    game = load_game(name)
    assert game.scenarios() == [scenario]
    assert module_to_send(game) is sys.modules[type(game).__module__]
    assert type(load_game(name)) is type(game), "the file is read once"


def test_an_absolute_path_and_two_files_of_one_name_are_told_apart(folder: Path) -> None:
    (folder / "mine.py").write_text(GAME.format(scenario="green"))
    first, second = load_game(f"{folder}/games/mine.py:Mine"), load_game("mine:Mine")
    assert (first.scenarios(), second.scenarios()) == (["red"], ["green"])
    assert load_game("games/mine.py:Mine").scenarios() == ["red"]


@pytest.fixture
def package(folder: Path) -> Path:
    """The package own.cards in the current folder, whose game imports relatively and absolutely."""
    (folder / "own" / "cards").mkdir(parents=True)
    for path in ("own", "own/cards"):
        (folder / path / "__init__.py").write_text("")
    (folder / "own" / "colours.py").write_text("COLOUR = 'violet'\n")
    (folder / "own" / "cards" / "base.py").write_text(GAME.format(scenario="green"))
    (folder / "own" / "cards" / "duel.py").write_text(
        "from own import colours\nfrom ..colours import COLOUR\nfrom .base import Mine\n\n\n"
        "class Duel(Mine):\n"
        "    def scenarios(self):\n"
        "        from .base import constant\n\n"
        "        assert COLOUR == colours.COLOUR and constant\n"
        "        return [COLOUR]\n"
    )
    return folder / "own"


@pytest.mark.parametrize("name", ["own.cards.duel:Duel", "own/cards/duel.py:Duel", "{}/own/cards/duel.py:Duel"])
def test_a_game_in_a_package_is_imported_with_its_package(name: str, package: Path) -> None:
    before = list(sys.path)
    game = load_game(name.format(package.parent))
    assert game.scenarios() == ["violet"]
    assert type(game).__module__ == "own.cards.duel"
    assert module_to_send(game) is sys.modules["own"]
    assert sys.path == before
    inherited = load_game("own.cards.duel:Mine")
    assert type(inherited).__module__ == "own.cards.base"
    assert module_to_send(inherited) is sys.modules["own"]


def test_a_package_itself_may_have_the_class(package: Path) -> None:
    (package / "__init__.py").write_text("from .cards.base import Mine\n")
    assert load_game("own:Mine").scenarios() == ["green"]


def test_a_package_with_the_name_of_another_one_is_refused(package: Path, tmp_path: Path) -> None:
    load_game("own.cards.duel:Duel")
    other = tmp_path / "elsewhere" / "own"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "duel.py").write_text(GAME.format(scenario="grey"))
    with pytest.raises(ConfigError, match=r"\(ImportError: another package is named own; rename yours\)$"):
        load_game(f"{other}/duel.py:Mine")


def test_an_installed_module_is_imported_as_it_is_and_not_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for here in (folder, Path(__file__).resolve().parents[3]):
        monkeypatch.chdir(here)
        game = load_game("spag_ray.games.kuhn:KuhnPoker")
        assert type(game) is KuhnPoker
        assert module_to_send(game) is None


def test_a_game_of_another_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entries(monkeypatch, cards="spag_ray.games.kuhn:KuhnPoker", kuhn="nowhere:Nothing")
    assert isinstance(load_game("cards"), KuhnPoker)
    assert isinstance(load_game("kuhn"), KuhnPoker), "a shipped name is not taken over"


REFUSED = {
    "chess": r"^game.name: chess is not known; there are taboo, kuhn, cards, or name your own as my_module:MyGame$",
    "games/none.py:Mine": r"^game.name: games/none.py:Mine: there is no file games/none.py$",
    "nowhere:Mine": r"^game.name: nowhere:Mine: nowhere cannot be imported \(ModuleNotFoundError: No module named",
    "games/mine.py:Yours": r"^game.name: games/mine.py:Yours: games/mine.py has no Yours$",
    "games/mine.py:": r"games/mine.py has no $",
    ":Mine": r"cannot be imported",
    "games/mine.py:constant": r"^game.name: games/mine.py:constant is not a class of a game$",
    "games/mine.py:Picky": r"games/mine.py:Picky: it cannot be made without arguments \(.*'words'\)$",
    "games/mine.py:Trio": r"games/mine.py:Trio: it has 3 seats; only games of two seats are played$",
    "games/broken.py:Mine": r"games/broken.py cannot be imported \(SyntaxError",
    "games/raises.py:Mine": r"games/raises.py cannot be imported \(RuntimeError: not today\)$",
    "pathlib:Path": r"^game.name: pathlib:Path: a game needs seats, max_turns, is_exhaustive, scenarios, ",
    "lost": r"^game.name: lost: nowhere:Nothing cannot be imported \(ModuleNotFoundError",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_game_is_refused_in_one_line(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "games" / "broken.py").write_text("def :")
    (folder / "games" / "raises.py").write_text("raise RuntimeError('not today')")
    entries(
        monkeypatch, cards="spag_ray.games.kuhn:KuhnPoker", **({"lost": "nowhere:Nothing"} if name == "lost" else {})
    )
    with pytest.raises(ConfigError, match=REFUSED[name]) as caught:
        load_game(name)
    assert "\n" not in str(caught.value)


def test_a_file_that_failed_is_read_again_once_it_is_mended(folder: Path) -> None:
    path = folder / "games" / "late.py"
    path.write_text("raise RuntimeError('not today')")
    with pytest.raises(ConfigError, match="not today"):
        load_game("games/late.py:Mine")
    path.write_text(GAME.format(scenario="black"))
    assert load_game("games/late.py:Mine").scenarios() == ["black"]


class Whole:
    seats: Any = ("one", "two")
    max_turns: Any = 3
    is_exhaustive = True
    scenarios = messages = rule = print


CLAIMS = {"guesser": 1, "claim": "I bet on {word}.", "claims_from": "I bet on", "fact": lambda self, scenario: scenario}


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (
            {"is_simultaneous": True},
            "its seats move at the same time; give it `to_move`, which says in which order they are asked",
        ),
        ({"seats": ("one",)}, "it has 1 seats; only games of two seats are played"),
        ({"seats": "ab"}, "it has 'ab' seats; only games of two seats are played"),
        ({"seats": ("one", "")}, "its seats are named 'one' and ''; give two different names"),
        ({"seats": ("one", "one")}, "its seats are named 'one' and 'one'; give two different names"),
        ({"seats": (1, 2)}, "its seats are named 1 and 2; give two different names"),
        ({"max_turns": 0}, "max_turns is 0; it is the number of turns of each seat"),
        ({"max_turns": True}, "max_turns is True; it is the number of turns of each seat"),
        ({"is_exhaustive": "no"}, "is_exhaustive is 'no'; set it to True or False"),
        ({"is_exhaustive": None}, "is_exhaustive is None; set it to True or False"),
        ({"is_simultaneous": 0}, "is_simultaneous is 0; set it to True or False"),
        ({"scenarios": ["red"]}, "scenarios is ['red']; it has to be a method"),
        ({"rule": None}, "rule is None; it has to be a method"),
        ({"scripted": "check"}, "scripted is 'check'; it has to be a method"),
        ({"hidden": ["red"]}, "hidden is ['red']; it has to be a method"),
        ({"seats": property(lambda self: 1 / 0)}, "its seats cannot be read (ZeroDivisionError: division by zero)"),
        ({"max_turns": 2.5}, "max_turns is 2.5; it is the number of turns of each seat"),
        ({"prompt_style": "holdem"}, "prompt_style is 'holdem'; it is one of chat, lines, flat"),
        ({"rule_set": 3}, "rule_set is 3; it is the name of its rules"),
        (CLAIMS | {"guesser": 1.0}, "guesser is 1.0; it is the number of the seat that guesses, 0 or 1"),
        (CLAIMS | {"guesser": 2}, "guesser is 2; it is the number of the seat that guesses, 0 or 1"),
        (CLAIMS | {"claim": "I bet."}, "claim is 'I bet.'; it needs one {word}, where the fact is named"),
        (
            CLAIMS | {"claim": "{word} or {word}"},
            "claim is '{word} or {word}'; it needs one {word}, where the fact is named",
        ),
        (CLAIMS | {"claims_from": 7}, "claims_from is 7; it is the words after which a reply counts as a claim"),
        (
            CLAIMS | {"claim": property(lambda self: 1 / 0)},
            "its claim cannot be read (ZeroDivisionError: division by zero)",
        ),
        (CLAIMS | {"fact": "red"}, "fact is 'red'; it has to be a method"),
        (
            {"thought_marks": ("\n<", ">")},
            "thought_marks is ('\\n<', '>'); give what begins a thought and what ends it, or None; a reply begins with "
            "no white space",
        ),
        (
            {"thought_marks": ("<", "")},
            "thought_marks is ('<', ''); give what begins a thought and what ends it, or None; a reply begins with no "
            "white space",
        ),
    ],
)
def test_a_game_that_arenas_cannot_play_is_refused(attributes: dict[str, Any], said: str) -> None:
    check_form(Whole(), "whole")
    with pytest.raises(ConfigError) as caught:
        check_form(type("Faulty", (Whole,), attributes)(), "mine:Mine")
    assert str(caught.value) == f"game.name: mine:Mine: {said}"


CONFIGURED = """
from spag_ray.errors import ConfigError
from spag_ray.games.kuhn import KuhnPoker

class Sized(KuhnPoker):
    def __init__(self, turns=2):
        self.max_turns = turns

    @classmethod
    def configured(cls, config):
        if config.seed == 13:
            raise ConfigError("seed 13 brings bad luck")
        return cls(config.seed // (config.seed != 0))
"""


def test_a_run_makes_a_game_from_its_configuration_if_the_class_says_how(folder: Path) -> None:
    (folder / "sized_game.py").write_text(CONFIGURED)
    settings = {"game": {"name": "sized_game.py:Sized"}, "imitation": {"games": 64}}

    def made(seed: int) -> Game:
        return game_of(parse_config({**settings, "seed": seed}))

    assert (made(7).max_turns, made(5).max_turns, load_game("sized_game.py:Sized").max_turns) == (7, 5, 2)
    with pytest.raises(ConfigError, match=r"^seed 13 brings bad luck$"):
        made(13)
    with pytest.raises(ConfigError, match=r"it cannot be made of this configuration .*division"):
        made(0)


LETTERS = [chr(ord("a") + index) for index in range(20)]


class Letters(KuhnPoker):
    """Twenty scenarios, of which some are held out."""

    is_exhaustive = False
    every: Any = LETTERS

    def scenarios(self) -> Any:
        return self.every


def config_of(**settings: Any) -> RunConfig:
    return parse_config({"game": {"name": "kuhn"}, "prompts": "lines", **settings})


def test_the_game_of_a_configuration_is_made() -> None:
    assert isinstance(game_of(load_config("kuhn")), KuhnPoker)
    assert type(game_of(load_config("quickstart"))).__name__ == "TabooGame"


def test_a_game_without_scripted_seats_cannot_be_imitated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("silent.py").write_text(
        "class Silent:\n"
        "    seats, max_turns, is_exhaustive = ('a', 'b'), 1, True\n"
        "    scenarios = messages = rule = print\n"
    )
    settings = {"game": {"name": "silent.py:Silent"}}
    with pytest.raises(ConfigError, match="it has no scripted seats to imitate; set"):
        game_of(config_of(**settings))
    assert type(game_of(config_of(**settings, imitation={"enabled": False}))).__name__ == "Silent"


@pytest.mark.parametrize("style", ["lines", "chat"])
def test_a_games_prompts_are_rendered_in_the_style_that_prompts_names(style: str) -> None:
    tokenizer = tokenizer_of("chatml")
    renderer = renderer_of(config_of(prompts=style), tokenizer)
    shown = tokenizer.decode(list(renderer.prompt([], Role.ATTACKER, "KJ")))
    assert "You have the King: check or bet?" in shown
    assert ("<|im_start|>assistant" in shown) == (style == "chat")


def test_taboos_prompts_come_from_its_prompt_file() -> None:
    tokenizer = tokenizer_of("chatml")
    renderer = renderer_of(load_config("quickstart", ["prompts=lines", "game.max_turns=7"]), tokenizer)
    assert renderer.game.max_turns == 7
    assert "river" in tokenizer.decode(list(renderer.prompt([], Role.ATTACKER, "river")))


def test_scenarios_are_split_by_the_seed_alone() -> None:
    config = config_of(words={"num_held_out": 6})
    trained, held_out = scenarios_of(config, Letters())
    assert (len(trained), len(held_out)) == (14, 6)
    assert sorted(trained + held_out) == LETTERS
    assert scenarios_of(config, Letters()) == (trained, held_out)
    assert trained != sorted(trained), "in another order than they were given"
    other = scenarios_of(config_of(words={"num_held_out": 6}, seed=1), Letters())
    assert sorted(other[1]) != sorted(held_out)


def test_fewer_scenarios_to_train_on_leave_the_held_out_ones_as_they_are() -> None:
    trained, held_out = scenarios_of(config_of(words={"num_held_out": 6}), Letters())
    few, same = scenarios_of(config_of(words={"num_held_out": 6, "num_train": 3}), Letters())
    assert few == trained[:3]
    assert same == held_out
    few, every = scenarios_of(config_of(words={"num_train": 3}), KuhnPoker())
    assert (len(few), len(every)) == (3, 6), "of an exhaustive game, too, which is evaluated on all"


def test_scenarios_that_a_game_cannot_list_are_its_fault_in_one_line() -> None:
    class Forgetful(KuhnPoker):
        def scenarios(self) -> list[str]:
            raise KeyError("deals")

    with pytest.raises(GameError, match=r"Forgetful.scenarios: it raises KeyError: 'deals' \(test_registry.py, line"):
        scenarios_of(config_of(), Forgetful())


def test_an_exhaustive_game_is_evaluated_on_all_that_it_is_trained_on() -> None:
    trained, held_out = scenarios_of(config_of(words={"num_held_out": 40}), KuhnPoker())
    assert trained == held_out
    assert sorted(trained) == sorted(KuhnPoker().scenarios())
    assert scenarios_of(config_of(seed=1), KuhnPoker())[0] != trained


@pytest.mark.parametrize(
    ("every", "said"),
    [
        ([], "game.name: kuhn: its scenarios have to be texts, at least one"),
        (["a", 2], "game.name: kuhn: its scenarios have to be texts, at least one"),
        (["a", ""], "game.name: kuhn: its scenarios have to be texts, at least one"),
        (["a", "b", "a"], "game.name: kuhn: the scenario 'a' is there twice; give each once"),
        (LETTERS[:6], "words.num_held_out is 6, but kuhn has 6 scenarios; hold fewer out"),
    ],
)
def test_scenarios_that_are_no_list_of_different_texts_and_too_few_are_refused(every: list[Any], said: str) -> None:
    class Faulty(Letters):
        pass

    Faulty.every = every
    with pytest.raises(ConfigError) as caught:
        scenarios_of(config_of(words={"num_held_out": 6}), Faulty())
    assert str(caught.value) == said


def test_one_scenario_more_than_are_held_out_is_enough() -> None:
    trained, held_out = scenarios_of(config_of(words={"num_held_out": 19}), Letters())
    assert (len(trained), len(held_out)) == (1, 19)
