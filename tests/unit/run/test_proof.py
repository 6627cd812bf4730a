"""The proof run trains its seeds and the rivals of each with `train --seeds`, then lets them meet."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import proof
from spag_ray.game.rules import Outcome
from spag_ray.results.matches import Game, Match


class Calls:
    """What was asked of the command line. Every run of `train --seeds` ends as `ends` says."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.ends = {1: "finished", 2: "finished"}
        self.made: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> None:
        self.made.append(list(arguments))
        if arguments[0] == "train":
            for seed, ended in self.ends.items():
                folder = Path(arguments[arguments.index("--run-dir") + 1]) / f"seed-{seed}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "ended.json").write_text(json.dumps({"ended": ended}))
                (folder / "metrics.jsonl").touch()
        elif arguments[0] == "match":
            Path(arguments[arguments.index("--out") + 1]).write_text("[]")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls(tmp_path)
    monkeypatch.setattr(proof, "called", found)
    # Two seeds that learned 1,000 and 3,000 tokens in rounds; the published objective would train on half of the first
    # round's.
    tokens = {
        "seed-1": {"imitated": 5000, "spag-1": 1000},
        "seed-2": {"imitated": 3000, "spag-1": 2000, "spag-2": 1000},
    }
    monkeypatch.setattr(proof, "target_tokens", lambda run: dict(tokens[run.name]))
    monkeypatch.setattr(proof, "published_tokens", lambda run, config: {"seed-1": 500, "seed-2": 1000}[run.name])
    return found


def test_seeds_are_trained_before_their_rivals_and_meet_at_the_end(calls: Calls) -> None:
    out = calls.out
    proof.run(out, "1-2", ["name=a", "self_play.rounds=2", "self_play.games_per_round=30", "imitation.games=40"])
    trained = [call for call in calls.made if call[0] == "train"]
    assert [call[call.index("--run-dir") + 1] for call in trained] == [
        f"{out}/{name}" for name in ("spag", "published", "imitation-only", "listening-only")
    ]
    assert all(call[:4] == ["train", proof.CONFIG, "--seeds", "1-2"] for call in trained)
    spag, published, imitation, listening = map(set, trained)
    assert published - spag >= {
        f"model={out}/spag/seed-{{seed}}/models/imitated",
        "self_play.games_per_round=40",  # 30 games gave 1,500 of the 4,000 tokens in two rounds
        "objective.loss=published",
    }
    assert imitation - spag >= {"imitation.games=60", "self_play.rounds=0"}  # 8,000 tokens and 4,000 more
    assert listening - published == {f"{out}/listening-only", proof.NOTHING_PAYS}
    matches = [call for call in calls.made if call[0] == "match"]
    assert [call[call.index("--out") + 1] for call in matches] == [
        f"{out}/spag/seed-1/matches.json",
        f"{out}/spag/seed-2/matches.json",
    ]
    assert f"published={out}/published/seed-2/models/spag-2" in matches[1]
    assert f"imitation-only={out}/imitation-only/seed-2/models/imitated" in matches[1]
    assert "seed=2" in matches[1]
    costs = json.loads((out / "seed-2" / "costs.json").read_text())
    assert [cost["step"] for cost in costs] == ["spag", *proof.RIVALS, "match", "report"]
    assert costs[0] == {
        "step": "spag",
        "seconds": 0,
        "imitation_tokens": 3000,
        "self_play_tokens": 3000,
        "self_play_games": 0,
    }


def test_a_match_that_has_finished_is_not_played_again(calls: Calls) -> None:
    for _ in range(2):
        proof.run(calls.out, "1-2", ["self_play.rounds=1"])
    assert [call[0] for call in calls.made].count("match") == 2


def test_a_folder_keeps_the_seeds_that_its_rivals_are_made_for(calls: Calls) -> None:
    proof.run(calls.out, "1-2", ["self_play.rounds=1"])
    calls.made.clear()
    with pytest.raises(SystemExit, match="has seeds 1, 2, which its rivals are made for"):
        proof.run(calls.out, "1-3", ["self_play.rounds=1"])
    assert calls.made == []


def test_nothing_follows_a_seed_that_has_stopped(calls: Calls) -> None:
    calls.ends[2] = "stopped"
    with pytest.raises(SystemExit, match="seed-2: stopped; call this again to continue"):
        proof.run(calls.out, "1-2", [])
    assert len(calls.made) == 1


def test_a_table_of_few_games_says_where_none_are_without_a_breach() -> None:
    def match(attacker: str, defender: str, outcome: Outcome) -> Match:
        return Match(attacker, defender, (Game("apple", outcome, 1),))

    met = [match("a", "b", Outcome.ATTACKER_BREACH), match("b", "a", Outcome.ATTACKER_WINS)]
    both, without_breaches, *_ = proof.score_cells([met], "a", "b")
    assert both == "0.00"
    assert without_breaches == "none"


def test_a_stage_that_has_not_played_itself_has_no_shares() -> None:
    *_, row = proof.outcome_lines([[]], ["base"])
    assert row == "| base | 0 | none | none | none | none |"
