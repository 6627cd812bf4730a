"""From a configuration to its game, its renderer and its scenarios."""

from pathlib import Path
from typing import Any

import pytest

from spag_ray.config.loading import load_config, parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, GameError
from spag_ray.game.rules import Role
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.of_config import game_of, renderer_of, scenarios_of
from tests.support.families import tokenizer_of

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

    with pytest.raises(GameError, match=r"Forgetful.scenarios: it raises KeyError: 'deals' \(test_of_config.py, line"):
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
