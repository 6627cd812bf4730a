"""Adapters in vLLM: the newest changes while turns are played, and a league's past versions play beside each other."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from actors.league import League, version_of
from actors.policy import Completion, Request, Sampling
from actors.transformers_policy import TransformersPolicy
from cluster.commands.train import run_training
from learners.export import Exporter
from learners.lora import adapter_config, adapter_weights, merged_weights, save_adapter, with_adapters
from learners.model_folder import load_model
from spag_ray.config.engine import EngineConfig
from spag_ray.config.parts import LoraConfig
from spag_ray.episodes.log import read_log
from spag_ray.errors import EngineError, WeightSyncError
from spag_ray.weights.snapshot import Snapshot
from tests.support.exporting import ALONE
from tests.support.faults import FaultyRun, hit, kill_engine
from tests.support.policies import PROMPT
from tests.support.runs import quiet, records_of, stream_run


def adapted_model(model: Path, version: int) -> Any:
    """The model with a random adapter of `version`."""
    torch.manual_seed(version)
    lora = with_adapters(load_model(str(model), torch.float32, "sdpa"), LoraConfig(rank=8, alpha=32))
    for name, parameter in lora.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return lora


def adapted(model: Path, version: int) -> tuple[Snapshot, Snapshot]:
    """A random adapter of `version`, alone, and merged into the model's weights."""
    lora = adapted_model(model, version)

    def snapshot(weights: Any, adapter: Any = None) -> Snapshot:
        exporter = Exporter(ALONE, weights, torch.float32, 10**9)
        bucket = exporter.bucket(0)
        assert bucket is not None
        return Snapshot.of(version, (bucket,), adapter)

    return snapshot(adapter_weights(lora), adapter_config(lora)), snapshot(merged_weights(lora))


@pytest.mark.parametrize(  # a vLLM engine with room for adapters each
    "in_flight", [True, pytest.param(False, marks=pytest.mark.long)]
)
def test_turns_under_way_end_with_the_adapter_they_began_with(in_flight: bool, tiny_model: Path, loop: Any) -> None:
    from actors.vllm_policy import VllmPolicy

    config = EngineConfig(dtype="float32", max_model_len=512, kv_cache_gib=0.1, max_num_seqs=2, max_lora_rank=8)
    adapters = {version: adapted(tiny_model, version) for version in (1, 2, 3)}
    greedy = Sampling(0.0, 150)

    async def scenario() -> list[tuple[int, Completion]]:
        """More turns than run at once, so that some wait while adapters change."""
        policy = await VllmPolicy.start(str(tiny_model), config)
        try:
            turns: list[tuple[int, asyncio.Task[list[Completion]]]] = []
            for version in (0, 1, 2, 3):
                if version:
                    await policy.load(adapters[version][0], in_flight)
                requests = [Request(f"turn-{version}-{number}", PROMPT[: 4 + number], greedy) for number in range(4)]
                turns += [(version, asyncio.create_task(policy.generate([request]))) for request in requests]
                await asyncio.sleep(0.05)
            async with asyncio.timeout(120):
                return [(version, (await turn)[0]) for version, turn in turns]
        finally:
            await policy.close()

    found = loop.run(scenario())
    for version, turn in found:
        assert (turn.first_version, turn.last_version) == (version, version)
        reference = TransformersPolicy(str(tiny_model), max_model_len=512)
        if version:
            loop.run(reference.load(adapters[version][1]))
        prompt = PROMPT[: 4 + int(turn.request_id.rsplit("-", 1)[1])]
        (scored,) = loop.run(reference.score([(prompt, turn.token_ids)]))
        assert scored.is_greedy, f"{turn.request_id} was not played by version {version} alone"


def saved_adapter(model: Path, version: int, folder: Path) -> str:
    lora = adapted_model(model, version)
    save_adapter(str(folder), {name: ab[0] for name, (ab, _) in adapter_weights(lora).items()}, adapter_config(lora))
    return str(folder)


def read_by_peft(model: Path, adapter: str, merged: Path) -> TransformersPolicy:
    """The model with a saved adapter, as peft reads and merges it."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    peft.PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(merged)
    return TransformersPolicy(str(merged), max_model_len=512)


@pytest.mark.timeout(300)
def test_adapters_of_one_engine_answer_together_each_as_itself(tiny_model: Path, tmp_path: Path, loop: Any) -> None:
    from actors.vllm_policy import VllmPolicy

    config = EngineConfig(
        dtype="float32", max_model_len=512, kv_cache_gib=0.1, max_num_seqs=16, max_lora_rank=8, max_adapters=3
    )
    folders = {version: saved_adapter(tiny_model, version, tmp_path / f"v{version}") for version in (3, 5, 8, 9)}
    names: list[str | None] = [None, "past-0", "past-1", "past-2"]

    async def answers(policy: Any, of: str) -> dict[str | None, list[Completion]]:
        """Sixteen turns decoded at once: four of each adapter and four of none, all with the same prompts."""
        requests = [
            Request(f"{of}-{name}-{seed}", PROMPT, Sampling(1.0, 24, seed=seed), adapter=name)
            for seed in range(4)
            for name in names
        ]
        found = await policy.generate(requests)
        return {name: list(found[place :: len(names)]) for place, name in enumerate(names)}

    async def scenario() -> Any:
        policy = await VllmPolicy.start(str(tiny_model), config)
        try:
            with pytest.raises(EngineError, match=r"holds no adapter 'past-0'; it holds none$"):
                await policy.generate([Request("early", PROMPT, Sampling(), adapter="past-0")])
            await policy.hold({f"past-{place}": (folders[v], v) for place, v in enumerate((3, 5, 8))})
            first = await answers(policy, "first")
            sequences = [(PROMPT, first[None][seed].token_ids) for seed in range(4)]
            # While others decode: prompt log-probabilities beside decoding have killed vLLM's CPU worker before.
            scores, _ = await asyncio.gather(
                asyncio.gather(*(policy.score(sequences, adapter=name) for name in names)), answers(policy, "beside")
            )
            # Version 9 replaces 3 under its name, 5 moves to another name, and two opponents are version 8.
            await policy.hold({"past-0": (folders[9], 9), "past-1": (folders[8], 8), "past-2": (folders[8], 8)})
            second = await answers(policy, "second")
            with pytest.raises(EngineError, match=r"holds no adapter 'past-7'; it holds past-0, past-1, past-2$"):
                await policy.score(sequences, adapter="past-7")
            with pytest.raises(WeightSyncError, match="could not load the adapter of version 4: ") as refused:
                await policy.hold({"past-0": (str(tmp_path / "gone"), 4)})
            assert "\n" not in str(refused.value)
            return first, scores, second
        finally:
            await policy.close()

    first, scores, second = loop.run(scenario())
    players = {v: read_by_peft(tiny_model, folder, tmp_path / f"merged-{v}") for v, folder in folders.items()}
    players[0] = TransformersPolicy(str(tiny_model), max_model_len=512)

    def logprobs_under(version: int, token_ids: tuple[int, ...]) -> tuple[float, ...]:
        (score,) = loop.run(players[version].score([(PROMPT, token_ids)]))
        return score.logprobs

    for found, versions in ((first, (0, 3, 5, 8)), (second, (0, 9, 8, 8))):
        for name, version in zip(names, versions, strict=True):
            for turn in found[name]:
                assert (turn.first_version, turn.last_version) == (version, version)
                assert turn.logprobs == pytest.approx(logprobs_under(version, turn.token_ids), abs=1e-3)
                for other in set(versions) - {version}:
                    assert turn.logprobs != pytest.approx(logprobs_under(other, turn.token_ids), abs=0.1)
    for version, scored in zip((0, 3, 5, 8), scores, strict=True):
        for seed in range(4):
            expected = logprobs_under(version, first[None][seed].token_ids)
            assert scored[seed].logprobs == pytest.approx(expected, abs=1e-3)


@pytest.mark.long  # a run that is killed and resumed, and then its opponents' engine
@pytest.mark.usefixtures("local_ray")
@pytest.mark.timeout(500)
def test_a_league_of_adapters_plays_on_one_engine_also_after_the_run_and_that_engine_have_died(
    tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    config = stream_run(
        tiny_model,
        words,
        24,
        engine={"num_engines": 1},
        learner={"lora": {"rank": 8, "alpha": 32, "export": "adapter"}},
        league={"past_share": 0.6, "num_opponents": 3, "snapshot_every": 2, "max_snapshots": 5},
        self_play={"rounds": 1, "games_per_round": 8 * 24, "games_in_flight": 8, "learning_rate": 1e-3},
        checkpoint={"every_versions": 2},
    )

    def strike() -> bool:
        """Kill the opponents' engine once it plays in the resumed run: one that dies while it is started ends a run."""
        resumed = records_of(folder, "resumed")[-1]["time"]
        return any(line["time"] > resumed for line in records_of(folder, "opponent")) and kill_engine("-past-")

    run = FaultyRun(
        config,
        folder,
        ["run killed", "opponent engine killed"],
        gap_s=3,
        seed=0,
        hit=lambda fault, chance: strike() if fault == "opponent engine killed" else hit(fault, chance),
    )
    run.to_the_end()
    run.check(24)
    assert "engine-policy-past-0" in {line["what"] for line in records_of(folder, "restart")}
    replaced = next(line for line in records_of(folder, "engine_joined") if line["engine"] == "engine-policy-past-0.2")
    assert records_of(folder, "resumed")

    written = json.loads((folder / "league.json").read_text())
    kept = {past["number"]: Path(past["folders"]["policy"]) for past in written["kept"]}
    league = League(config.league, config.seed)
    if (numbers := folder / "league" / "numbers.json").exists():
        league.numbers = json.loads(numbers.read_text())
    assert len(kept) == 5
    for saved in kept.values():
        assert {path.name for path in saved.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    drawn = records_of(folder, "opponent")
    episodes = list(read_log(folder / "episodes" / "stream.log"))
    past = [turn for each in episodes for turn in each.turns if turn.policy == "past policy"]
    assert {turn.first_version for turn in past} <= {line["version"] for line in drawn}
    after = [line["version"] for line in drawn if line["time"] > replaced["time"]]
    assert len({turn.first_version for turn in past} & set(after)) >= 3, "the replacement holds all of them"
    # Newer weights than max_lag allows cannot have met as the newest: these are games against past versions.
    pairs = [sorted((version_of(row["attacker"]), version_of(row["defender"]))) for row in written["games"]]
    met = {older for older, newer in pairs if newer - older > config.stream.max_lag and older >= 0}
    assert met <= {league.version_of_number(turn.first_version) for turn in past}
    assert len(met) >= 3
    # What was played is what the adapter on disk says, turn by turn, and not what the base model says.
    checked, furthest, base = 0, 0.0, TransformersPolicy(str(tiny_model), max_model_len=512)
    for version, saved in kept.items():
        player = read_by_peft(tiny_model, str(saved), tmp_path / f"merged-{version}")
        for turn in [turn for turn in past if turn.first_version == version][:10]:
            asked = [(turn.prompt_ids, turn.token_ids)]
            (score,), (of_base,) = (asyncio.run(each.score(asked)) for each in (player, base))
            assert turn.logprobs == pytest.approx(score.logprobs, abs=2e-3)
            furthest = max(furthest, *(abs(a - b) for a, b in zip(turn.logprobs, of_base.logprobs, strict=True)))
            checked += 1
    assert checked >= 10
    assert furthest > 0.02


@pytest.mark.long  # another whole run
@pytest.mark.timeout(400)
def test_a_stream_whose_engine_takes_adapters_in_flight_ends(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = stream_run(
        tiny_model,
        words,
        12,
        engine={"num_engines": 1, "max_num_seqs": 4},
        learner={"lora": {"rank": 8, "alpha": 32, "export": "adapter"}, "timeout_s": 60},
        sync={"update": "in_flight"},
        sampling={"max_new_tokens": 60},
    )
    run_training(config, tmp_path / "run", quiet())
    syncs = records_of(tmp_path / "run", "sync")
    assert [line["version"] for line in syncs] == list(range(1, 13))
    assert not records_of(tmp_path / "run", "restart")
    turns = [turn for each in read_log(tmp_path / "run" / "episodes" / "stream.log") for turn in each.turns]
    assert all(turn.first_version == turn.last_version for turn in turns)
    assert len(Counter(turn.first_version for turn in turns)) > 6, "turns were played while versions came"
