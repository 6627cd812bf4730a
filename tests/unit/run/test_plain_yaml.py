"""YAML is read with each key once, wherever the program reads it."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.runtime.run_folder import make_run_folder, reopen_run_folder
from spag_ray.config.loading import load_config, parse_config
from spag_ray.errors import ConfigError, SpagError
from spag_ray.games.taboo.decks import read_deck
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.plain_yaml import parse_yaml
from spag_ray.training_data.prompt_randomization import load_varied

TWICE = "self_play:\n  rounds: 3\n  games_per_round: 64\nseed: 1\nself_play:\n  rounds: 2\n"


def test_a_key_that_is_twice_in_a_configuration_is_refused_with_both_lines(tmp_path: Path) -> None:
    """The first block, with its games_per_round, was dropped without a word."""
    file = tmp_path / "run.yaml"
    file.write_text(TWICE)
    with pytest.raises(ConfigError, match=r"run\.yaml: the key self_play is there twice, on lines 1 and 5") as caught:
        load_config(str(file))
    assert "\n" not in str(caught.value)


def test_a_key_that_is_twice_in_a_group_is_named_with_its_group() -> None:
    with pytest.raises(ConfigError, match=r"the key a\.b\.c is there twice, on lines 3 and 5"):
        parse_yaml("a:\n  b:\n    c: 1\n    d: 2\n    c: 1\n", "x")
    with pytest.raises(ConfigError, match=r"the key a\.1\.b is there twice, on line 1"):
        parse_yaml("a: [{b: 1}, {b: 1, b: 2}]", "x")


def test_a_key_that_is_twice_in_an_override_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"-o game: the key max_turns is there twice"):
        load_config("quickstart", ["game={max_turns: 3, max_turns: 4}"])


def test_a_key_that_is_twice_in_a_prompt_file_or_a_deck_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    readers: list[Callable[[str], Any]] = [load_template, load_varied]
    for read in readers:
        file.write_text("style: chat\nstyle: flat\n")
        with pytest.raises(ConfigError, match="the key style is there twice, on lines 1 and 2"):
            read(str(file))
        file.write_text("style: [\n")
        with pytest.raises(ConfigError, match="not valid YAML"):
            read(str(file))
    _, faults = read_deck("river:\n  clues: [water]\n  difficulty: 0.5\n  clues: [bank]\n")
    assert [(f.line, f.text) for f in faults] == [(4, "river: the key clues is on line 2 already; remove one of them")]


def test_a_key_that_is_twice_in_a_run_folder_is_refused(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", parse_config({}))
    (folder / "config.yaml").write_text(TWICE)
    with pytest.raises(SpagError, match=r"config\.yaml: the key self_play is there twice, on lines 1 and 5"):
        reopen_run_folder(folder, parse_config({}))


def test_keys_of_merged_mappings_may_be_set_again() -> None:
    text = "base: &base {a: 1, b: 2}\nup: {in: &one {<<: *base, a: 3}}\nown: {<<: *one, a: 4}\n"
    assert parse_yaml(text, "x") == yaml.safe_load(text)
    assert parse_yaml("a: 1\n'1': b\n1: c\n", "x") == {"a": 1, "1": "b", 1: "c"}, "text and a number are two keys"


def test_an_alias_that_leads_back_to_its_own_anchor_ends() -> None:
    found = parse_yaml("a: &a\n  b: *a\n", "x")
    assert found["a"]["b"] is found["a"]


def test_values_are_not_repeated_in_a_fault_because_they_may_be_secrets() -> None:
    for text in ("key: SECRET\nbad", "key: *SECRET", "key: !SECRET a", "token: SECRET\ntoken: SECRET", "a: 'SECRET"):
        with pytest.raises(ConfigError) as caught:
            parse_yaml(text, "x")
        assert "SECRET" not in str(caught.value)
        assert "\n" not in str(caught.value)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_read_as_yaml_reads_it_or_refused_in_one_line(text: str) -> None:
    try:
        expected = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        with pytest.raises(ConfigError) as caught:
            parse_yaml(text, "x")
        assert "\n" not in str(caught.value)
        return
    with contextlib.suppress(ConfigError):  # a key is there twice
        assert repr(parse_yaml(text, "x")) == repr(expected), "nan is not equal to itself"
