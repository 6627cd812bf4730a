"""Several games in one configuration: what is refused, and what each game gets."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.launch.placed_run import every_words, rules_of, words_of_file
from cluster.runtime.run_folder import make_run_folder, reopen_run_folder
from spag_ray.config.loading import load_config, named_paths, parse_config, to_yaml
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, InputError, RunFolderError
from spag_ray.game.rules import Role
from spag_ray.games.taboo.decks import load_deck

KUHN = {"name": "kuhn", "share": 0.25, "objective": {"role_weights": "none", "baseline": "scenario", "decay": 1.0}}
TABOO = {"name": "taboo", "share": 0.75, "max_turns": 4}
TWO: dict[str, Any] = {
    "games": [TABOO, KUHN],
    "prompts": "lines",
    "words": {"max_difficulty": 0.4, "num_held_out": 10},
    "objective": {"learn_from": "both", "listening_coeff": 1.0, "claiming_coeff": 0.1, "unsaid_coeff": 0.6},
    "imitation": {"listening_coeff": 0.15, "claiming_coeff": 0},
}


def two(**changes: Any) -> RunConfig:
    return parse_config(TWO | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"game": {"name": "kuhn"}}, "game and games are both set; give one game in game, or several in games"),
        ({"game": {}}, "game and games are both set"),
        ({"games": [TABOO, KUHN | {"share": 0.5}]}, "games: the shares add up to 1.25; they have to add up to 1"),
        ({"games": [TABOO | {"share": 1.0}, KUHN | {"share": 0}]}, "games.1.share: should be greater than 0"),
        ({"games": [TABOO, {"name": "kuhn"}]}, "games.1.share: is missing"),
        ({"games": [TABOO, TABOO | {"share": 0.25}]}, "games: taboo is there twice"),
        ({"games": [TABOO]}, "games: the shares add up to 0.75; they have to add up to 1"),
        ({"games": []}, "games: should have at least 1 entries"),
        ({"games": {"name": "kuhn"}}, "games: should be a list"),
        ({"games": [TABOO, KUHN | {"max_turns": 3}]}, "games.1.name: kuhn: games.1.max_turns is for the game `taboo`"),
        (
            {"games": [TABOO, KUHN | {"name": "game.py:My", "rules": "published"}]},
            "games.1.name: game.py:My: games.1.rul",
        ),
        ({"prompts": "flat"}, "games.1.name: kuhn: prompts is flat, but its messages are written as chat or lines"),
        ({"render": "varied"}, "games.1.name: kuhn: render: varied is for the game `taboo`"),
        ({"preset": "published"}, "games: preset: published is for the game `taboo` alone"),
        ({"imitation": {"source": "games.json"}}, "imitation.source is games.json, but files are of the game `taboo`"),
        ({"games": [TABOO, KUHN | {"objective": {"clip_range": 0.1}}]}, "unknown key 'games.1.objective.clip_range'"),
        (
            {"games": [KUHN | {"share": 0.75}, {"name": "textarena", "env": "TicTacToe-v0", "share": 0.25}]},
            "games.0.name: kuhn: words.max_difficulty is for the game `taboo`; leave it out",
        ),
        ({"games": [TABOO, KUHN | {"env": "TicTacToe-v0"}]}, "env is TicTacToe-v0, but name is kuhn"),
    ],
)
def test_games_that_cannot_be_combined_are_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        two(**changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shares_may_be_rounded() -> None:
    thirds = [TABOO | {"share": 0.3333334}, {"name": "textarena", "env": "TicTacToe-v0", "share": 0.3333333}]
    assert len(two(games=[*thirds, KUHN | {"share": 0.3333333}]).games) == 3


def test_each_game_has_the_configuration_of_a_run_of_its_own() -> None:
    taboo, kuhn = two().each_game
    assert (taboo.game.full_name, kuhn.game.full_name) == ("taboo", "kuhn")
    assert taboo.game.max_turns == 4
    assert (taboo.objective.listening_coeff, taboo.words.max_difficulty, taboo.imitates_claims) == (1.0, 0.4, True)
    assert (kuhn.objective.role_weights, kuhn.objective.baseline, kuhn.objective.decay) == ("none", "scenario", 1.0)
    assert (taboo.objective.role_weights, taboo.objective.baseline, taboo.objective.decay) == ("balanced", "none", 0.8)
    assert kuhn.objective.learn_from == "both", "what a game leaves out is the run's"
    assert not kuhn.listens, "settings that only Taboo has do not reach the other games"
    for each in (taboo, kuhn):
        assert parse_config(each.model_dump(mode="json")) == each, "it is valid by itself"
        assert each.each_game == (each,)


def test_a_game_is_chosen_by_its_name_and_one_line_says_which_there_are() -> None:
    assert two().of_game("kuhn").game.full_name == "kuhn"
    assert RunConfig().of_game(None) == RunConfig()
    with pytest.raises(ConfigError, match=r"has the games taboo, kuhn; choose one of them with --game"):
        two().of_game(None)
    with pytest.raises(ConfigError, match=r"has the games taboo, kuhn, not chess; choose"):
        two().of_game("chess")


def test_one_game_is_a_list_of_one_that_is_written_in_short() -> None:
    alone = {"prompts": "lines", "game": {"name": "kuhn"}}
    listed = {"prompts": "lines", "games": [{"name": "kuhn", "share": 1}]}
    config = parse_config(alone)
    assert parse_config(listed) == config
    assert [game.full_name for game in config.games] == [config.game.full_name] == ["kuhn"]
    assert config.each_game == (config,)
    assert yaml.safe_load(to_yaml(config))["game"]["name"] == "kuhn"
    own = parse_config({**listed, "games": [{"name": "kuhn", "share": 1, "objective": {"decay": 1.0}}]})
    assert "game" not in (written := yaml.safe_load(to_yaml(own)))
    assert parse_config(written) == own != config
    assert own.each_game[0].objective.decay == 1.0


@pytest.mark.parametrize(
    ("game", "said"),
    [
        ({"max_turn": 4}, "unknown key 'game.max_turn'; the nearest known one is 'game.max_turns'"),
        ({"max_turns": 0}, "game.max_turns: should be greater than or equal to 1 (got 0)"),
        ({"share": 0.5}, "game.share: a share is for several games"),
        (5, "game: should be a group of keys (name, env, max_turns, rules, ...)"),
    ],
)
def test_a_fault_of_the_short_form_has_the_key_of_the_file(game: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"game": game})
    assert str(caught.value).startswith(f"config: {said}")


def test_overrides_reach_the_only_game_and_each_of_several() -> None:
    assert load_config("quickstart", ["game.max_turns=3"]).game.max_turns == 3
    assert load_config("kuhn", ["game.name=textarena", "game.env=Nim-v0"]).game.full_name == "textarena:Nim-v0"
    first, second = load_config("two_games", ["games.0.max_turns=3", "games.1.objective.decay=0.5"]).games
    assert (first.max_turns, second.objective.decay) == (3, 0.5)
    with pytest.raises(ConfigError, match=r"-o game\.max_turns: game and games are both set.*games\.0\.KEY"):
        load_config("two_games", ["game.max_turns=3"])
    for wrong in ("games.7.name=kuhn", "games.first.name=kuhn", "games.0=kuhn"):
        with pytest.raises(ConfigError, match=r"-o games\.(7|first|0)"):
            load_config("two_games", [wrong])


def test_the_written_file_has_either_game_or_games() -> None:
    written = yaml.safe_load(to_yaml(two()))
    assert "game" not in written
    assert parse_config(written) == two()
    assert "games" not in yaml.safe_load(to_yaml(RunConfig()))


def test_a_run_resumes_with_the_same_games_alone(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", two())
    assert reopen_run_folder(folder, two()) == folder
    for other in (two(games=[TABOO | {"share": 0.5}, KUHN | {"share": 0.5}]), parse_config({"game": {"max_turns": 3}})):
        with pytest.raises(RunFolderError, match="this run was started with game"):
            reopen_run_folder(folder, other)
    alone = make_run_folder(tmp_path / "alone", RunConfig())
    with pytest.raises(RunFolderError, match="this run was started with games: None, not"):
        reopen_run_folder(alone, parse_config({"games": [TABOO, KUHN]}))


def test_every_game_has_its_own_words_and_rules(tmp_path: Path) -> None:
    words, held_out = every_words(two(), load_deck("everyday", 0.4))
    assert isinstance(words, dict)
    assert isinstance(held_out, dict)
    assert len(held_out["taboo"]) == 10
    assert not set(words["taboo"]) & set(held_out["taboo"])
    assert sorted(words["kuhn"]) == ["JK", "JQ", "KJ", "KQ", "QJ", "QK"]
    assert words["kuhn"] == held_out["kuhn"], "all that can happen"
    taboo, kuhn = map(rules_of, two().each_game)
    assert (taboo.name, taboo.max_turns, taboo.guesser) == ("taboo", 4, Role.DEFENDER)
    assert (kuhn.name, kuhn.style, kuhn.guesser) == ("kuhn", "lines", None)
    with pytest.raises(InputError, match="a file has the words of one game, but this configuration has the games"):
        words_of_file(two(), tmp_path / "words.txt")


def test_only_taboo_of_several_games_is_listened_to() -> None:
    config = two(objective={"learn_from": "both", "information_gain": 0.5})
    assert [each.objective.information_gain for each in config.each_game] == [0.5, 0.0]
    own = parse_config({"game": {"name": "mine.py:Mine"}, "imitation": {"enabled": False}, "prompts": "chat",
                        "objective": {"information_gain": 0.5}})  # fmt: skip
    assert own.each_game[0].objective.information_gain == 0.5, "whether it hides a fact is found before the run"


def test_files_of_own_games_are_among_those_that_a_run_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("class Mine: ...\n")
    own = {"name": "mine.py:Mine", "share": 0.25}
    assert named_paths(two(games=[TABOO, own]))["games.1.name"] == "mine.py"
