"""A tiny run whose turns are paid for what they told a frozen listener, which is there again after a resume."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.models import load_tokenizer
from actors.transformers_policy import TransformersPolicy
from cluster.commands.train import run_training
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import read_log
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.training_data.game_samples import game_samples
from spag_ray.training_data.information_gain import gains
from tests.support.runs import quiet, records_of, tiny_run

pytestmark = [pytest.mark.parallel, pytest.mark.usefixtures("local_ray")]


def check_scores(episodes: Sequence[Episode], model: Path) -> None:
    """Against transformers' own forward pass with the listener's weights over the texts: first the rules alone, then
    what the defender heard and said."""
    renderer = taboo_renderer(load_template("chat"), load_tokenizer(str(model)), 2)
    asked, found = [], []
    for episode in episodes:
        claim, heard = renderer.claim(episode.scenario), list[Turn]()
        for turn in episode.turns:
            heard.append(renderer.told_turn(heard, turn.role, turn.text, episode.scenario, "somebody"))
        read = {place: turn.prompt_ids for place, turn in enumerate(heard) if turn.role is Role.DEFENDER}
        read[0] = renderer.opening(Role.DEFENDER, episode.scenario)
        assert {place for place, turn in enumerate(episode.turns) if turn.listener_logprob is not None} == read.keys()
        asked += [(read[place] + claim.opening_ids, claim.word_ids) for place in sorted(read)]
        found += [episode.turns[place].listener_logprob for place in sorted(read)]
    scores = asyncio.run(TransformersPolicy(str(model)).score(asked))
    assert found == pytest.approx([sum(score.logprobs) for score in scores], abs=2e-3)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("schedule", ["rounds", "stream"])
def test_turns_are_paid_for_what_they_told_the_imitated_model_also_after_a_resume(
    schedule: str, tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    config = tiny_run(
        tiny_model,
        words,
        schedule=schedule,
        stream={"games_per_version": 8} if schedule == "stream" else {},
        engine={"kind": "transformers", "num_cpus": 0.25},
        learner={"num_cpus": 0.5},
        objective={"information_gain": 5.0, "baseline": "mean"},
        self_play={"rounds": 1, "games_per_round": 16},
        evaluation={"games": 0},
    )
    run_training(config, folder, quiet())
    kept = {log.name: log.read_bytes() for log in (folder / "episodes").glob("*.log")}
    more = config.model_copy(update={"self_play": config.self_play.model_copy(update={"rounds": 2})})
    run_training(more, folder, quiet(), resume=True)
    assert all((folder / "episodes" / name).read_bytes()[: len(data)] == data for name, data in kept.items())

    logs = ["spag-1", "spag-2"] if schedule == "rounds" else ["stream"]
    episodes = [episode for log in logs for episode in read_log(folder / "episodes" / f"{log}.log")]
    assert len(episodes) >= 32
    check_scores(episodes, folder / "models" / "imitated")
    assert all(t.listener_logprob is None for each in read_log(folder / "episodes" / "expert.log") for t in each.turns)
    lines = [
        line
        for line in records_of(folder, "play" if schedule == "rounds" else "stream")
        if line.get("stage") != "expert"
    ]
    assert len(lines) == (2 if schedule == "rounds" else 4)
    assert all(line["num_unscored"] == 0 for line in lines)
    assert all(0 < line["listener_p"] < 1 for line in lines)
    if schedule == "stream":
        return
    of_stage = {log: list(read_log(folder / "episodes" / f"{log}.log")) for log in logs}
    for line, own in zip(lines, of_stage.values(), strict=True):
        every = [gain.value for episode in own for gain in gains(episode)]
        assert line["gain_mean"] == pytest.approx(math.fsum(every) / len(every), rel=1e-3)
    trained = [line["decided"] for line in records_of(folder, "samples") if line["what"].startswith("round")]
    assert trained == [len(game_samples(own, config.objective, learning={"policy"})) for own in of_stage.values()]
    plain = config.objective.model_copy(update={"information_gain": 0.0})
    assert trained != [len(game_samples(own, plain)) for own in of_stage.values()], "ties are trained on"
