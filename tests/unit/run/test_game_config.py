"""What a configuration may ask of another game than Adversarial Taboo, and the settings that came with such games."""

from pathlib import Path
from typing import Any

import pytest

from spag_ray.config.games import game_file, package_of
from spag_ray.config.loading import load_config, named_paths, parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError
from spag_ray.stages import Stage
from tests.support.settings import config_of


def kuhn(*overrides: str) -> RunConfig:
    return load_config("kuhn", list(overrides))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("objective.listening_coeff=0.1", "objective.listening_coeff is for the game `taboo`; leave it out"),
        ("objective.unsaid_coeff=0.1", "objective.unsaid_coeff is for the game `taboo`; leave it out"),
        ("objective.information_gain=0.1", "objective.information_gain is for the game `taboo`; leave it out"),
        ("imitation.listening_coeff=0.1", "imitation.listening_coeff is for the game `taboo`; leave it out"),
        ("objective.trap_credit=trap", "objective.trap_credit: trap is for the game `taboo`; leave it out"),
        ("objective.guess_credit=guess", "objective.guess_credit: guess is for the game `taboo`; leave it out"),
        ("render=varied", "render: varied is for the game `taboo`; leave it out"),
        ("game.max_turns=3", "game.max_turns is for the game `taboo`; leave it out"),
        ("game.rules=published", "game.rules is for the game `taboo`; leave it out"),
        ("words.source=words.txt", "words.source is for the game `taboo`; leave it out"),
        ("words.deck=mine.yaml", "words.deck is for the game `taboo`; leave it out"),
        ("words.max_difficulty=0.5", "words.max_difficulty is for the game `taboo`; leave it out"),
        ("words.max_held_out_difficulty=0", "words.max_held_out_difficulty is for the game `taboo`; leave it out"),
        ("preset=published", "preset: published is for the game `taboo`; leave it out"),
        ("game.payoffs={tie: [-0.1, -0.1]}", "its rulings say what a game pays; leave game.payoffs out"),
        ("prompts=flat", "prompts is flat, but its messages are written as chat or lines"),
        ("prompts=mine.yaml", "prompts is mine.yaml, but its messages are written as chat or lines"),
        ("imitation.source=games.json", "imitation.source is games.json, but files are of the game `taboo`; set it to"),
    ],
)
def test_what_has_a_meaning_in_taboo_alone_is_refused_for_another_game(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kuhn("objective.kl_reference=stage", override)
    assert f"game.name: kuhn: {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_settings_at_the_values_of_a_written_config_are_taken() -> None:
    """A run's config.yaml has all keys, so a default is no request."""
    config = kuhn("objective.listening_coeff=0", "imitation.listening_coeff=0", "game.payoffs={}", "prompts=chat")
    assert config.prompts == "chat"
    assert parse_config(config.model_dump(mode="json")) == config


def test_a_file_of_games_is_no_matter_where_nothing_is_imitated() -> None:
    assert not kuhn("imitation.enabled=false", "imitation.source=games.json").imitation.enabled


def test_taboo_takes_what_is_refused_elsewhere() -> None:
    config = load_config("quickstart", ["objective.listening_coeff=0.1", "objective.unsaid_coeff=0.1", "prompts=flat"])
    assert config.game.is_taboo
    assert not kuhn().game.is_taboo


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("kuhn", None),
        ("taboo", None),
        ("mine.py:Mine", "mine.py"),
        ("mine:Mine", "mine.py"),
        ("games.duel:Duel", "games/duel.py"),
        ("games/duel.py:Duel", "games/duel.py"),
        ("own.cards.duel:Duel", "own"),
        ("own/cards/duel.py:Duel", "own"),
        ("own:Duel", "own"),
        ("own.cards:Duel", "own"),
        ("games/none.py:Duel", None),
        ("none:Mine", None),
        ("mine.py", None),
    ],
)
def test_the_file_of_a_game_or_its_package_is_a_path_or_a_module_in_the_current_folder(
    name: str, file: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("games", "own/cards"):
        Path(folder).mkdir(parents=True)
    for path in ("mine.py", "games/duel.py", "__init__.py", "own/__init__.py", "own/cards/__init__.py"):
        Path(path).write_text("")
    Path("own/cards/duel.py").write_text("")
    found = game_file(name)
    assert (found and (package_of(found) or found)) == (None if file is None else Path(file))
    config = parse_config({"game": {"name": name}, "prompts": "lines"})
    assert named_paths(config).get("game.name") == file, "it is sent with a job"


def test_a_name_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"game\.name"):
        kuhn("game.name=''")


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({"rounds": 3}, [2e-5, 2e-5, 2e-5]),
        ({"rounds": 3, "last_learning_rate": 4e-6}, [2e-5, 80**0.5 * 1e-6, 4e-6]),
        ({"rounds": 1, "last_learning_rate": 4e-6}, [2e-5]),
        ({"rounds": 2, "last_learning_rate": 3e-5}, [2e-5, 3e-5]),
    ],
)
def test_the_learning_rate_changes_by_the_same_factor_every_round(settings: dict[str, Any], rates: list[float]) -> None:
    config = parse_config({"self_play": {"learning_rate": 2e-5, **settings}})
    assert [config.self_play.learning_rate_of(number) for number in range(1, len(rates) + 1)] == pytest.approx(rates)
    assert config.self_play.learning_rate_of(len(rates) + 5) == pytest.approx(rates[-1]), "of rounds added on resuming"


def test_the_kl_coefficient_changes_in_the_same_way() -> None:
    self_play = parse_config({"self_play": {"rounds": 3, "last_kl_coeff": 0.25}}).self_play
    assert [self_play.kl_coeff_of(number, 1.0) for number in (1, 2, 3, 9)] == pytest.approx([1.0, 0.5, 0.25, 0.25])
    assert self_play.kl_coeff_of(3, 0.0) == 0.0, "no KL term stays none"
    assert parse_config({}).self_play.kl_coeff_of(2, 0.3) == 0.3
    with pytest.raises(ConfigError, match="last_kl_coeff is for schedule: rounds"):
        parse_config({"schedule": "stream", "self_play": {"games_per_round": 64, "last_kl_coeff": 0.1}})


def test_rounds_have_the_payoffs_of_their_phase_and_all_others_those_of_the_game() -> None:
    phases = [{"rounds": 2, "payoffs": {"trap": [0.5, -1]}}, {"rounds": 1}, {"rounds": 1, "payoffs": {}}]
    game = {"payoffs": {"trap": [0.25, -1]}}
    config = parse_config({"game": game, "self_play": {"rounds": 6, "phases": phases}})
    paid = [config.payoffs_of(Stage.of_round(number)).trap[0] for number in range(1, 9)]
    assert paid == [0.5, 0.5, 0.25, 1.0, 0.25, 0.25, 0.25, 0.25], "a phase without payoffs has those of the game"
    others = ("base", "expert", "imitated", "stream", "eval-spag-1", "match-spag-1@base", "play")
    assert {config.payoffs_of(Stage.parse(name)).trap[0] for name in others} == {0.25}
    assert config.payoffs_of(Stage.parse("spag-2-attacker")).trap[0] == 0.5
    assert parse_config(config.model_dump(mode="json")) == config


def test_a_game_of_ones_own_may_have_phases_of_information_gain() -> None:
    phases = [{"rounds": 1, "information_gain": 0}]
    objective = {"information_gain": 1, "advantage": "rae"}
    config = parse_config({"game": {"name": "mine:G"}, "objective": objective, "self_play": {"phases": phases}})
    (own,) = config.each_game
    assert [own.objective_of(Stage.of_round(number)).information_gain for number in (1, 2)] == [0, 1]


def test_rounds_have_the_information_gain_of_their_phase() -> None:
    phases = [{"rounds": 1, "information_gain": 2.0}, {"rounds": 1}, {"rounds": 1, "information_gain": 0}]
    config = parse_config({"objective": {"information_gain": 0.5}, "self_play": {"rounds": 4, "phases": phases}})
    assert [config.objective_of(Stage.of_round(number)).information_gain for number in range(1, 5)] == [2, 0.5, 0, 0.5]
    assert config.objective_of(Stage.parse("eval-spag-1")) is config.objective


PHASE = "self_play.phases=[{rounds: 1}]"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            "self_play.rounds=2; self_play.phases=[{rounds: 1}, {rounds: 2}]",
            "self_play: phases have 3 rounds, but rounds is 2; set rounds to at least 3, or shorten the phases, which",
        ),
        (
            "self_play.phases=[{rounds: 1}, {rounds: 1, information_gain: 0.5}]",
            "self_play.phases.1.information_gain needs a listener, which a run has if objective.information_gain",
        ),
        ("self_play.phases=[{rounds: 0}]", "self_play.phases.0.rounds: should be greater than or equal to 1"),
        (
            "self_play.phases=[{rounds: 1, payoffs: {right_guess: [1, 1]}}]",
            "self_play.phases.0.payoffs: a right guess pays the attacker 1, a tie 0: it would learn to help",
        ),
        (
            "self_play.phases=[{rounds: 1, payoffs: {tie: [-0.1, -0.1]}}]",
            "self_play.phases.0.payoffs.tie: a tie has no winner; to train on ties, set objective.learn_from: both",
        ),
        (f"{PHASE}; game.name=kuhn; prompts=lines", "self_play.phases are for a run of one game"),
        (
            "self_play.phases=[{rounds: 1, payoffs: {}}]; game.name=mine:G; prompts=lines",
            "self_play.phases are for a run of one game: payoffs by round of `taboo`, information_gain by round of it",
        ),
        (
            "game.payoffs={right_guess: [1, 1], cooperative: true}; objective.learn_from=both; "
            "league.past_share=0.5; league.choose=hard",
            "league.choose: hard chooses opponents by who wins, but game.payoffs pays both for a right guess",
        ),
        (
            f"{PHASE}; games=[{{name: taboo, share: 0.5}}, {{name: kuhn, share: 0.5}}]; prompts=lines",
            "self_play.phases are for a run of one game",
        ),
    ],
)
def test_phases_that_no_round_plays_or_that_a_game_cannot_have_are_refused(settings: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(settings)
    assert said in str(caught.value)


def test_weights_of_the_start_are_kept_where_the_kl_term_compares_with_them() -> None:
    assert kuhn().keeps_stage_start
    assert not kuhn("objective.kl_coeff=0").keeps_stage_start
    assert not kuhn("objective.kl_reference=stage").keeps_stage_start
    assert kuhn("objective.kl_coeff=0", "learner.reference=engine").learner.reference == "engine"


def test_a_game_of_ones_own_may_be_listened_to_if_it_is_the_only_one() -> None:
    """Whether it has a hidden fact is found when it is loaded, before the run."""
    listens = {"objective": {"listening_coeff": 0.3}, "imitation": {"listening_coeff": 0.2}}
    alone = parse_config({"game": {"name": "mine.py:Mine"}, **listens})
    (own,) = alone.each_game
    assert own.listens
    assert (own.objective.listening_coeff, own.imitation_listening_coeff) == (0.3, 0.2)
    with pytest.raises(ConfigError, match=r"objective.listening_coeff is for the game `taboo`"):
        parse_config({"games": [{"name": f"mine.py:{name}", "share": 0.5} for name in "AB"], **listens})
    taboo = parse_config({"games": [{"name": "mine.py:A", "share": 0.5}, {"name": "taboo", "share": 0.5}], **listens})
    assert [each.listens for each in taboo.each_game] == [False, True]
