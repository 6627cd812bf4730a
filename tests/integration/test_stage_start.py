"""A stream's learner: its schedule over rounds, and the reference it stays close to: a stage's start, or an average."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from cluster.learning.learning_policy import LearningPolicy
from cluster.learning.stage_samples import TrainingStage
from cluster.tracking.recorder import Recorder
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Role
from spag_ray.stages import Stage
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.stage_spec import StageSpec, learning_rate_at
from tests.support.runs import steps_of, tiny_run

pytestmark = [pytest.mark.parallel, pytest.mark.usefixtures("local_ray")]
RATE, KL_COEFF, TEMPERATURE = 1e-2, 0.2, 1.5


class Stream:
    """What cluster/run/training.py does with a policy, version by version; `taken` has the games of each step."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.folder = folder
        self.policy = LearningPolicy("policy", tuple(Role), config, folder, config.model, Recorder(folder))
        self.taken: list[list[GameSample]] = []
        self.start()

    def start(self) -> None:
        self.policy.start_learners()
        learners: Any = self.policy.learners
        step = learners.step

        def watched(games: list[GameSample], *rest: Any, **more: Any) -> Any:
            self.taken.append(list(games))
            return step(games, *rest, **more)

        learners.step = watched

    def learn(self, stage: str, part: int, advantage: float = 1.0, after: str = "", num_steps: int = 4) -> Any:
        """One version of a stage, in one step of three games; its line in metrics.jsonl."""
        began_with = Stage.parse(after) if after else None
        spec = StageSpec("self_play", num_steps, RATE, KL_COEFF, temperature=TEMPERATURE, name="stream", is_part=True)
        training_stage = TrainingStage(Stage.parse(stage), spec, games(advantage), [], 3, part=part, after=began_with)
        self.policy.learn(training_stage, lambda *_: None)
        return steps_of(self.folder)[-1]

    def save(self, name: str) -> Path:
        checkpoint = self.folder / name
        checkpoint.mkdir()
        self.policy.save_state(checkpoint)
        return checkpoint

    def resume(self, checkpoint: Path) -> None:
        """What a run does that has just started; the learners have learned other things meanwhile."""
        self.policy.load_state(checkpoint, "stream")

    def close(self) -> None:
        self.policy.close_learners()


def games(advantage: float) -> list[GameSample]:
    made = []
    for number in range(3):
        turns = tuple(
            Sample((1, 40, 5, 6 + turn, 2, 1, 39), (9 + number, 10 + turn, 11, 2), advantage, (-3.0,) * 4)
            for turn in range(1 + number)
        )
        made.append(GameSample(f"g/{number}", Role.ATTACKER, 1.0, turns))
    return made


@pytest.fixture
def stream(request: pytest.FixtureRequest, tiny_model: Path, words: Path, tmp_path: Path) -> Iterator[Stream]:
    learner, objective = {**getattr(request, "param", {})}, {}
    if share := learner.pop("average", None):
        objective = {"kl_reference": "start", "kl_reference_average": share}
    config = tiny_run(
        tiny_model, words, schedule="stream", stream={"games_per_version": 8}, learner=learner, objective=objective
    )
    made = Stream(config, tmp_path)
    yield made
    made.close()


EVERY_LEARNER = pytest.mark.parametrize(
    "stream",
    [
        pytest.param({}, id="zero-1"),
        pytest.param({"dtype": "bfloat16"}, id="bfloat16", marks=pytest.mark.long),
        pytest.param({"packing": "none", "zero_stage": 0}, id="padded rows, zero-0", marks=pytest.mark.long),
        pytest.param({"zero_stage": 3, "num_ranks": 2}, id="two ranks, zero-3", marks=pytest.mark.long),
        pytest.param(
            {"deepspeed": "zero3_offload", "num_ranks": 2, "dtype": "bfloat16"},
            id="two ranks, zero-3, offloaded",
            marks=pytest.mark.long,
        ),
        pytest.param({"lora": {"rank": 4, "alpha": 8}}, id="adapters", marks=pytest.mark.long),
        pytest.param(
            {"lora": {"rank": 4, "alpha": 8}, "zero_stage": 3, "num_ranks": 2}, id="adapters, two ranks, zero-3"
        ),
    ],
    indirect=True,
)


@EVERY_LEARNER
def test_every_version_of_a_stage_stays_close_to_the_model_of_its_start(stream: Stream, tiny_model: Path) -> None:
    assert stream.learn("spag-1", part=0)["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    second = stream.learn("spag-1", part=1, advantage=0.0)
    assert second["kl_loss"] > 0, "in the first step of a version too"
    assert second["gradient_norm"] > 1e-4, "in the first step of a version too"
    assert second["ratio_mean"] == pytest.approx(1.0, abs=1e-3), "old is the version that is trained on"
    is_those_of(tiny_model, stream)

    start = Path(stream.policy.save_to(stream.policy.saved(Stage.of_round(1))))
    assert stream.learn("spag-2", part=0, after="spag-1")["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    checkpoint = stream.save("version-3")
    going_on = stream.learn("spag-2", part=1, after="spag-1")
    is_those_of(start, stream)

    stream.resume(checkpoint)
    resumed = stream.learn("spag-2", part=1, after="spag-1")
    is_those_of(start, stream)
    told = ("loss", "kl_loss", "gradient_norm", "learning_rate")
    assert {key: resumed[key] for key in told} == pytest.approx({key: going_on[key] for key in told}, rel=1e-4)


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param({"average": 0.25}, id="zero-1"),
        pytest.param({"average": 0.25, "dtype": "bfloat16"}, id="bfloat16", marks=pytest.mark.long),
        pytest.param({"average": 0.25, "num_ranks": 2}, id="two ranks, zero-1", marks=pytest.mark.long),
        pytest.param(
            {"average": 0.25, "zero_stage": 3, "num_ranks": 2}, id="two ranks, zero-3", marks=pytest.mark.long
        ),
        pytest.param(
            {"average": 0.25, "lora": {"rank": 4, "alpha": 8}, "zero_stage": 3, "num_ranks": 2},
            id="adapters, two ranks, zero-3",
            marks=pytest.mark.long,
        ),
    ],
    indirect=True,
)
def test_an_average_of_the_weights_moves_between_rounds_and_resumes_as_it_was(stream: Stream, tiny_model: Path) -> None:
    is_whole = stream.policy.config.learner.lora is None  # an average of adapters is none of merged models
    assert stream.learn("spag-1", part=0)["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    stream.learn("spag-1", part=1)
    is_those_of(tiny_model, stream)
    first = Path(stream.policy.save_to(stream.policy.saved(Stage.of_round(1))))
    checkpoint = stream.save("version-2")

    def second_round() -> list[dict[str, float]]:
        lines = [stream.learn("spag-2", part=part, after="spag-1") for part in range(2)]
        if is_whole:
            is_those_of(averaged(tiny_model, first, 0.25, stream.folder / "average"), stream)
        return [{key: line[key] for key in ("loss", "kl_loss", "gradient_norm")} for line in lines]

    going_on = second_round()
    assert going_on[0]["kl_loss"] > 1e-4, "from the first version on: it is not the stage's start"
    middle = stream.save("version-4")
    learner = stream.policy.config.learner
    num_files = learner.num_ranks if learner.zero_stage == 3 else 1
    assert len(list(middle.rglob("stage-start-*"))) == num_files, "ranks that hold the same save it once"
    third = stream.learn("spag-3", part=0, after="spag-2")["kl_loss"]
    stream.resume(checkpoint)
    assert second_round() == [pytest.approx(line, rel=1e-4) for line in going_on], "it moved once"
    stream.resume(middle)
    assert stream.learn("spag-3", part=0, after="spag-2")["kl_loss"] == pytest.approx(third, rel=1e-4)


def averaged(one: Path, other: Path, share: float, to: Path) -> Path:
    """A model folder: `share` of the first one's weights, the rest of the other's, in the other's dtype."""
    shutil.copytree(other, to, dirs_exist_ok=True)
    earlier, later = (load_file(folder / "model.safetensors") for folder in (one, other))
    mean = {name: (share * earlier[name].float() + (1 - share) * each.float()) for name, each in later.items()}
    save_file(
        {name: each.to(later[name].dtype) for name, each in mean.items()}, to / "model.safetensors", {"format": "pt"}
    )
    return to


def is_those_of(model: Path, stream: Stream) -> None:
    """The last step's reference log-probabilities are those that transformers computes with a saved model."""
    config = stream.policy.config.learner
    tolerance = 2e-3 if config.dtype == "float32" else 0.15
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    turns = [turn for game in stream.taken[-1] for turn in game.turns]
    assert turns
    for turn in turns:
        targets = torch.tensor(turn.target_ids).long()
        ids = torch.cat([torch.tensor(turn.prompt_ids), targets])[None]
        with torch.no_grad():
            logprobs = (loaded(ids).logits[0, len(turn.prompt_ids) - 1 : -1].float() / TEMPERATURE).log_softmax(-1)
        expected = logprobs[torch.arange(len(targets)), targets].tolist()
        assert turn.ref_logprobs == pytest.approx(expected, abs=tolerance)


def test_a_stream_that_is_resumed_with_more_rounds_follows_the_longer_schedule(stream: Stream) -> None:
    for part in range(2):
        stream.learn("spag-1", part, num_steps=2)
    stream.policy.save_to(stream.policy.saved(Stage.of_round(1)))
    stream.resume(stream.save("version-2"))
    rates = [stream.learn("spag-2", part, after="spag-1", num_steps=4)["learning_rate"] for part in range(2)]
    assert rates == pytest.approx([learning_rate_at(step, 4, RATE, 0.03) for step in (2, 3)])
    assert all(rate > 0 for rate in rates)


def test_learners_in_the_place_of_others_without_a_checkpoint_have_a_schedule_of_their_own(stream: Stream) -> None:
    first = stream.learn("spag-1", part=0)
    stream.close()
    stream.start()
    again = stream.learn("spag-1", part=0)
    assert again["learning_rate"] == first["learning_rate"] > 0
    assert again["step"] == 1
