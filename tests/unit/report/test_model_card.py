"""A saved model's README.md: what was measured and nothing else, the base model's licence, no path of the machine."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.loading import parse_config
from spag_ray.results.evaluations import Evaluation, write_evaluations
from spag_ray.results.matches import Match, write_matches
from spag_ray.results.model_card import MARK, SMOLLM2, BaseModel, write_cards
from spag_ray.stages import Stage
from tests.support.kuhn_runs import GAMES, kuhn_game, make_kuhn_run, make_two_games_run
from tests.support.old_run_folders import placed

BASE = BaseModel("tiny")


def card_of(run: Path, name: str) -> str:
    return (run / "models" / name / "README.md").read_text(encoding="utf-8")


def head_of(text: str) -> dict[str, Any]:
    head: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return head


def add_model(run: Path, *names: str) -> None:
    for name in names:
        (run / "models" / name).mkdir(parents=True)
        (run / "models" / name / "config.json").write_text("{}")


def test_every_model_gets_a_card_with_what_was_measured(tmp_path: Path) -> None:
    run = placed("rounds", tmp_path)
    versions = run / "versions.json"
    versions.write_text(versions.read_text().replace('"spag_ray": "0.2.0"', '"spag_ray": "0.1.9"'))
    rows = [Evaluation(stage, "arc", "acc", 0.5, 0.01, 20, 0) for stage in ("base", "spag-2")]
    rows += [Evaluation(stage, "chat", "points", value, None, 20, 0) for stage, value in (("base", 1.5), ("spag-2", 1))]
    write_evaluations(run / "evaluations.json", rows)
    assert [path.parent.name for path in write_cards(run, BASE)] == ["imitated", "spag-1", "spag-2"]
    newest = card_of(run, "spag-2")
    assert "# spag-2 of the run rounds" in newest
    assert "tiny, after imitation and 2 of 2 rounds of self-play" in newest
    assert "| spag-2 v spag-2 | 2 | 50 | 0 | 0 | 50 |" in newest
    assert "Mean score over both seats against imitated: " in newest
    assert "| arc | acc | 50.0 ± 1.0 | 20 |" in newest
    assert "| chat | points | 1.0 | 20 |" in newest, "no share, as another stage shows"
    assert "| `objective.loss` | spag |" in newest
    assert "torch 2.13.0+cpu" in newest
    assert "with spag_ray 0.1.9." in newest, "the run's, not the reader's"
    assert "spag-1 v spag-1" not in newest
    assert "spag-2 v imitated" in card_of(run, "imitated")
    assert "arc" not in card_of(run, "imitated")
    assert str(tmp_path) not in newest, "no path of this machine"


def test_what_was_not_measured_is_not_there(tmp_path: Path) -> None:
    run = placed("rounds", tmp_path)
    (run / "matches.json").unlink()
    (run / "config.yaml").write_text("[")
    write_cards(run, BASE)
    assert "## Results" not in card_of(run, "spag-1")
    assert "## Training" not in card_of(run, "spag-1")
    assert "# spag-1 of the run rounds" in card_of(run, "spag-1")


def test_only_the_models_of_a_stage_are_written_and_both_policies_are_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    paid = {"information_gain": -3.0}
    make_run_folder(run, parse_config({"policies": "separate", "words": {"source": "deck"}, "objective": paid}))
    add_model(run, "spag-1-attacker", "spag-1-defender", "imitated-attacker")
    write_matches(run / "matches.json", [Match.of("spag-1", "spag-1", [kuhn_game("s", 0, *GAMES[0])], "taboo")])
    written = write_cards(run, BASE, Stage.of_round(1))
    assert [path.parent.name for path in written] == ["spag-1-attacker", "spag-1-defender"]
    assert "| `objective.information_gain` | -3.0 |" in card_of(run, "spag-1-attacker"), "what hints were paid for"
    assert "It plays the defender's seat." in card_of(run, "spag-1-defender")
    assert "| spag-1 v spag-1 | 1 |" in card_of(run, "spag-1-defender")


def test_a_solved_game_has_its_exact_figures_and_its_own_seats(tmp_path: Path) -> None:
    run = make_kuhn_run(tmp_path / "run")
    add_model(run, "spag-1")
    write_cards(run, BASE)
    card = card_of(run, "spag-1")
    assert "| nash_conv | 0.0000 |" in card
    assert "| first v second | games | first wins | second wins | breach | tie |" in card


@pytest.mark.parametrize(
    ("readme", "licence", "said"),
    [
        ("---\nlicense: mit\n---\n", "mit", "mit, that of the base model base."),
        ("---\nlicense: other\nlicense_name: llama2\n---\n", "llama2", "llama2, that of the base model base."),
        ("---\nlicense: [\n---\n", None, "see base."),
        ("# No head", None, "see base."),
        (None, None, "see base."),
    ],
)
def test_the_licence_is_the_base_models(readme: str | None, licence: str | None, said: str, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    if readme is not None:
        (tmp_path / "base" / "README.md").write_text(readme)
    base = BaseModel.of_folder(tmp_path / "base")
    assert base == BaseModel("base", None, licence)
    run = placed("rounds", tmp_path)
    write_cards(run, base, Stage.of_round(1))
    assert head_of(card_of(run, "spag-1")).get("license") == licence
    assert said in card_of(run, "spag-1")


def test_a_model_of_the_hub_is_named_as_there(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen2.5-0.5B" / "snapshots" / "7ae5"
    snapshot.mkdir(parents=True)
    assert BaseModel.of_folder(snapshot) == BaseModel("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B")
    run = placed("rounds", tmp_path)
    write_cards(run, SMOLLM2, Stage.of_round(1))
    head = head_of(card_of(run, "spag-1"))
    assert (head["license"], head["base_model"]) == ("apache-2.0", "HuggingFaceTB/SmolLM2-135M-Instruct")


def test_a_card_is_written_again_until_somebody_makes_it_their_own(tmp_path: Path) -> None:
    run = placed("rounds", tmp_path)
    (run / "matches.json").rename(run / "later.json")
    write_cards(run, BASE)
    assert "## Results" not in card_of(run, "spag-2")
    (run / "later.json").rename(run / "matches.json")
    own = card_of(run, "spag-1").replace(MARK, "")
    (run / "models" / "spag-1" / "README.md").write_text(own)
    assert [path.parent.name for path in write_cards(run, BASE)] == ["imitated", "spag-2"]
    assert "## Results" in card_of(run, "spag-2")
    assert card_of(run, "spag-1") == own


def test_text_of_the_run_cannot_leave_its_cell(tmp_path: Path) -> None:
    run = placed("rounds", tmp_path)
    name = "x | y\n# <script>"
    write_matches(run / "matches.json", [Match.of("spag-2", name, [kuhn_game("s", 0, *GAMES[0])], "taboo")])
    write_cards(run, BASE)
    assert "| spag-2 v x y # script | 1 |" in card_of(run, "spag-2").replace("  ", " ")


def test_a_folder_with_a_card_loads_by_its_path_alone(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = placed("rounds", tmp_path)
    shutil.rmtree(run / "models")
    shutil.copytree(tiny_model, run / "models" / "spag-1")
    [card] = write_cards(run, BASE)
    assert card.is_file()
    model = AutoModelForCausalLM.from_pretrained(card.parent, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(card.parent, local_files_only=True)
    ids = tokenizer("it purrs", return_tensors="pt").input_ids
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape[1] > ids.shape[1]


def test_a_model_of_two_games_has_the_results_of_each(tmp_path: Path) -> None:
    run = make_two_games_run(tmp_path / "two")
    add_model(run, "spag-1")
    write_cards(run, BASE)
    text = card_of(run, "spag-1")
    assert "plays Adversarial Taboo and kuhn" in text
    assert "| `games` | taboo (0.25), kuhn (0.75) |" in text
    assert "`game.name`" not in text
    assert text.index("### Adversarial Taboo") < text.index("attacker v defender") < text.index("### kuhn")
    assert text.index("### kuhn") < text.index("first v second") < text.index("exact figure of kuhn")


def test_each_of_two_separate_policies_has_its_own_task_results(tmp_path: Path) -> None:
    run = placed("rounds", tmp_path)
    add_model(run, "spag-1-attacker", "spag-1-defender")
    rows = [Evaluation(f"spag-1-{seat}", f"task_{seat}", "acc", 0.5, 0.1, 10, 0) for seat in ("attacker", "defender")]
    write_evaluations(run / "evaluations.json", rows)
    write_cards(run, BASE)
    assert "task_attacker" in card_of(run, "spag-1-attacker")
    assert "task_defender" not in card_of(run, "spag-1-attacker")
