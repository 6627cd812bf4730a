"""Faults of settings in plain words, whatever pydantic calls them."""

import re
from typing import Any

import pytest

from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.training_data.prompt_randomization import load_varied

JARGON = re.compile(r"Input|tuple|instance of|dictionary|items after|Config\b|\bvalid\b|parse|pydantic|Field", re.I)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"evaluation": {"against": "base"}}, "evaluation.against: should be a list, such as [a, b] (got 'base')"),
        ({"learner": {"lora": 5}}, "learner.lora: should be a group of keys (rank, "),
        ({"engine": 5}, "engine: should be a group of keys (kind, "),
        ({"engine": {"env": ["A=1"]}}, "engine.env: should be a group of keys"),
        ({"imitation": {"enabled": "perhaps"}}, "imitation.enabled: should be true or false (got 'perhaps')"),
        ({"evaluation": {"games": [1]}}, "evaluation.games: should be a whole number (got [1])"),
        ({"evaluation": {"games": 1.5}}, "evaluation.games: should be a whole number (got 1.5)"),
        ({"evaluation": {"games": -1}}, "evaluation.games: should be greater than or equal to 0 (got -1)"),
        ({"sampling": {"temperature": "warm"}}, "sampling.temperature: should be a number (got 'warm')"),
        ({"sampling": {"temperature": float("inf")}}, "sampling.temperature: should be a finite number (got inf)"),
        ({"model": ["a"]}, "model: should be text (got ['a'])"),
        ({"game": {"name": ""}}, "game.name: should have at least 1 character (got '')"),
        (
            {"objective": {"loss": "zz"}},
            "objective.loss: should be 'spag', 'published', 'ppo-clip', 'dr-grpo' or 'gspo' (got 'zz')",
        ),
        ({"game": {"payoffs": {"trap": [1, 2, 3]}}}, "game.payoffs.trap: should have at most 2 entries, not 3"),
        ({"game": {"payoffs": {"trap": [1]}}}, "game.payoffs.trap.1: is missing (got [1])"),
        ({"engine": {"num_engines": {"min": 1}}}, "engine.num_engines.max: is missing (got {'min': 1})"),
        ({"engine": {"num_engines": "many"}}, "engine.num_engines: should be a whole number (got 'many')"),
        ({"number": 3}, "unknown key 'number'; the nearest known one is 'name'"),
        ({"self_play": {"range": 3}}, "unknown key 'self_play.range'; the nearest known one is 'self_play.rounds'"),
        ({"engine": {"env": {"bool": 1}}}, "engine.env.bool: should be text"),
        ({"engine": {"env": {"A": 1, "B": 1}}}, "engine.env.A: should be text"),
        (
            {"chat_template_kwargs": {"x": []}},
            "chat_template_kwargs.x: should be true or false, or a whole number, or a number, or text (got [])",
        ),
        ({"league": {"fixed": {"model": "x"}}}, "league.fixed: should be a list, such as [a, b]"),
        ({"league": {"fixed": ["x"]}}, "league.fixed.0: should be a group of keys (model, "),
    ],
)
def test_a_fault_says_what_the_value_should_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(settings)
    assert str(caught.value).startswith(f"config: {said}")
    assert not JARGON.search(str(caught.value).removeprefix("config: ").replace("engine.env", ""))


def test_a_fault_between_keys_does_not_repeat_the_whole_group() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"evaluation": {"against": ["base", "base"], "games": 7}})
    assert "got" not in str(caught.value)


@pytest.mark.parametrize("load", [load_template, load_varied])
@pytest.mark.parametrize("text", ["wordings: 5", "[]", "5", "", "wordings: []\nline: [1]\nother: 2"])
def test_a_prompt_file_has_its_first_fault_in_one_line(load: Any, text: str, tmp_path: Any) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path}: not a")
    assert "\n" not in str(caught.value)
    assert not JARGON.search(str(caught.value).removeprefix(str(path)))
