"""Every key of the configuration is explained, in the terminal and on a page, from where it is declared."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from cluster.guarded import run_guarded
from cluster.planning.config_reference import entries, explained, reference, related
from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def run(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["config", *arguments])
    assert found.exit_code == 0, found.output
    return found.output


def keys_of(settings: object, prefix: str = "") -> set[str]:
    found = set()
    if isinstance(settings, dict):
        for key, value in settings.items():
            found |= {prefix + key} | keys_of(value, f"{prefix}{key}.")
    return found


def test_every_key_of_a_dumped_configuration_has_a_meaning_and_a_default() -> None:
    dumped = keys_of(parse_config({}).model_dump(mode="json"))
    short = {key.replace("game.", "games[].", 1) if key.startswith("game.") else key for key in dumped} - {"game"}
    assert short <= set(entries())
    assert [key for key, entry in entries().items() if not entry.meaning] == []
    assert [key for key in short if entries()[key].default is None] == []


def test_the_page_is_what_the_command_prints() -> None:
    told = "spag-ray config --markdown > docs/configuration.md"
    assert PAGE.read_text() == reference() == run("--markdown"), f"write it anew: {told}"


def test_a_key_is_explained_with_its_type_range_default_and_the_keys_it_goes_with() -> None:
    assert run("objective.clip_range").splitlines() == [
        "objective.clip_range: number, above 0, below 1",
        "default: 0.2",
        "importance ratios are clipped at 1 - clip_range",
        "see also: objective.clip_range_high",
    ]
    assert "uniform | hard | even | nash; default: uniform" in run("league")
    assert run("league.fixed.0.share").startswith("league.fixed[].share: number, above 0, at most 1\ndefault: none")
    assert run("game.max_turns").startswith("games[].max_turns: whole number, at least 1\ndefault: 5")
    assert run("games.1.env").startswith("games[].env: text | empty")
    assert "engine.num_engines.grow_after_s" in run("engine.num_engines")
    assert run("learner.dtype").splitlines()[1] == "default: depends on the machine"
    assert len(run().splitlines()) == 30, "the parts and what can be asked"


def test_keys_that_explain_each_other_are_named_and_words_of_a_sentence_are_not() -> None:
    assert related("learner.lora.export") == ["league.num_opponents"]
    assert related("objective.kl_coeff") == ["objective.kl_reference", "self_play.last_kl_coeff"]
    assert "seed" not in related("league")
    assert related("evaluation.base_games") == ["evaluation.games"]


def test_a_key_that_is_not_there_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"there is no key objectiv\.clip_rang; did you mean `objective.clip_range`\?"
    ):
        explained("objectiv.clip_rang")
    assert run_guarded(lambda standalone_mode: app(["config", "leage"], standalone_mode=standalone_mode)) == 2
    assert "did you mean `league`" in capsys.readouterr().err
