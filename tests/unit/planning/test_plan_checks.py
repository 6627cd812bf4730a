"""`train --dry-run` refuses what starts on no machine, and names what it does not check."""

from pathlib import Path
from typing import Any

import pytest

from cluster.checks.check_results import plan_checks
from cluster.planning.plan import print_plan
from cluster.planning.plan_checks import check_plan, micro_batch_fault, room_fault
from spag_ray.config.loading import load_config, parse_config
from spag_ray.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "changes", "told"),
    [
        ("llama2_7b_8gpu", ["engine.tensor_parallel_size=2"], r"engine\.num_gpus is 0\.6; set it to 2"),
        ("llama2_7b_8gpu", ["learner.num_gpus=1.5"], r"learner\.num_gpus is 1\.5"),
        ("quickstart", ["engine.vllm={quantisation: fp8}"], r"engine\.vllm\.quantisation: .*did you mean quantization"),
        ("quickstart", ["prompts=chatt"], r"^prompts: chatt: no such file, .*shipped ones \(chat, chat_thinking, flat"),
        ("quickstart", ["words.deck=evryday"], r"^words\.deck: evryday: .*shipped ones \(everyday\)"),
        ("quickstart", ["learner.deepspeed=zero9"], r"^learner\.deepspeed: zero9: .*zero1"),
        ("quickstart", ["render=varied", "varied_prompts=varyed"], r"^varied_prompts: varyed: "),
        ("quickstart", ["sampling.max_new_tokens=4000"], r"8 turns .* take 32128 tokens without any rules, but engine"),
        ("kuhn", ["sampling.max_new_tokens=4000"], r"4 turns .* take 16064 tokens"),
        ("quickstart", ["learner.zero_stage=3", "learner.compile=layers"], r"learner\.compile: layers is not possible"),
        (
            "quickstart",
            ["model=/none", "learner.zero_stage=0", "learner.dtype=bfloat16"],
            r"ZeRO stage 0 with bfloat16",
        ),
        ("kuhn", ["game.name=kuhnn"], r"kuhnn is not known; there are taboo, kuhn"),
        ("two_games", ["games=[{name: taboo, share: 0.5}, {name: khun, share: 0.5}]"], "khun is not known"),
        ("quickstart", ["self_play.rounds=0", "imitation.enabled=false"], "nothing to train"),
    ],
)
def test_what_starts_nowhere_is_refused(config: str, changes: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        check_plan(load_config(config, changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("preset", [{}, {"preset": "published"}])
def test_defaults_fit_each_other(preset: dict[str, Any]) -> None:
    check_plan(parse_config({"model": "/mine", **preset}))


@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "/nowhere"])
def test_a_plan_names_what_seats_start_with(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    seats = {"policies": "separate", "seat_models": {"attacker": "/models/mine"}, "engine": {"max_model_len": 4096}}
    print_plan(parse_config({"model": model, **seats}))
    assert "weights of the attacker: /models/mine" in capsys.readouterr().out


def test_a_misspelt_taboo_is_told_which_game_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"did you mean `taboo`\?"):
        load_config("quickstart", ["game.name=tabu"])


def test_what_needs_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_plan(load_config("llama2_7b_8gpu")) == ["model /models/Llama-2-7b-hf"]
    files = ["self_play.sft_file=data/alpaca_train.json", "imitation.source=data/train_imitation_gpt4.json"]
    assert check_plan(load_config("llama2_7b_8gpu", [*files, "words.source=words.txt"])) == [
        "model /models/Llama-2-7b-hf",
        "self_play.sft_file data/alpaca_train.json",
        "imitation.source data/train_imitation_gpt4.json",
        "words.source words.txt",
    ]
    long = {"engine": {"max_model_len": 4096}, "learner": {"max_tokens_per_microbatch": 4096}}
    own: dict[str, Any] = {**long, "prompts": "mine/prompts.yaml", "words": {"deck": "deck.yaml"}}
    own["learner"] = {**long["learner"], "deepspeed": "/elsewhere/zero.json"}
    assert check_plan(parse_config(own)) == [
        "model smollm2-135m-instruct",
        "prompts mine/prompts.yaml",
        "learner.deepspeed /elsewhere/zero.json",
        "words.deck deck.yaml",
    ]
    game = {"game": {"name": "mine.py:Mine"}, "imitation": {"enabled": False}, "prompts": "lines"}
    assert check_plan(parse_config(game)) == ["model smollm2-135m-instruct", "game.name mine.py:Mine"]


def test_with_its_rules_a_game_needs_more_room() -> None:
    config = parse_config({"engine": {"max_model_len": 1000}, "sampling": {"max_new_tokens": 84}})
    assert room_fault(config, 0, 10) is None
    assert "the rules take 1 tokens and 10 turns of sampling.max_new_tokens 84 up to 1000 more" in str(
        room_fault(config, 1, 10)
    )


def test_a_micro_batch_that_cannot_hold_the_longest_game_is_refused_before_anything_is_played() -> None:
    settings = {"engine": {"max_model_len": 4096}, "sampling": {"max_new_tokens": 184}}
    for tokens, fits in ((1999, False), (2000, True)):  # 5 turns of each player, 16 tokens between turns
        config = parse_config({**settings, "learner": {"max_tokens_per_microbatch": tokens}})
        assert (micro_batch_fault(config, 0, 10) is None) is fits
        if fits:
            check_plan(config)
            continue
        with pytest.raises(ConfigError, match=r"10 turns .* take 2000 tokens without any rules, but learner") as caught:
            check_plan(config)
        assert "raise it to 2000" in str(caught.value)
        assert "\n" not in str(caught.value)
        check_plan(parse_config({**config.model_dump(), "self_play": {"rounds": 0}}))
    assert "the rules take 50 tokens" in str(micro_batch_fault(config, 50, 10))
    assert "raise it to 2050" in str(micro_batch_fault(config, 50, 10))


def test_a_game_has_to_fit_what_auto_has_become(capsys: pytest.CaptureFixture[str]) -> None:
    long = ["sampling.max_new_tokens=200", "engine.max_model_len=4096", "game.max_turns=8"]
    config = load_config("quickstart", ["learner.max_tokens_per_microbatch=auto", *long])
    with pytest.raises(ConfigError, match=r"max_tokens_per_microbatch is 2048; raise it to 3456"):
        print_plan(config)
    assert not capsys.readouterr().out.count("plan of")


def test_the_shape_of_the_files_model_is_not_that_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_config("llama2_7b_8gpu").model_shape is not None
    assert load_config("llama2_7b_8gpu", ["model=/models/Llama-2-7b-hf"]).model_shape is not None
    other = load_config("llama2_7b_8gpu", ["model=/nowhere/other"])
    assert other.model_shape is None
    assert print_plan(other)
    assert "the size of /nowhere/other is unknown" in capsys.readouterr().out
    sizes = "vocab_size: 9, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2"
    own = load_config("llama2_7b_8gpu", ["model=/nowhere/other", f"model_shape={{{sizes}}}"])
    assert own.model_shape is not None
    assert own.model_shape.vocab_size == 9


@pytest.mark.parametrize(
    ("gpus", "told"), [(3, "32 attention heads"), (6, "32 attention heads"), (16, None), (2, None), (1, None)]
)
def test_a_plan_that_cannot_start_has_failed(gpus: int, told: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("llama2_7b_8gpu", [f"engine.tensor_parallel_size={gpus}", f"engine.num_gpus={gpus}"])
    found = [(each.check, each.status) for each in plan_checks(config)]
    assert found == ([("plan", "fail")] if told else [])
    assert print_plan(config) == (told is None)
    assert (f"cannot start: {told}" in capsys.readouterr().out) == (told is not None)


@pytest.mark.parametrize(
    ("shape", "gpus", "told"),
    [
        ({"num_attention_heads": 12, "num_key_value_heads": 4}, 6, "4 key and value heads"),
        ({"num_attention_heads": 12, "num_key_value_heads": 4}, 2, None),
        ({"num_attention_heads": 12, "num_key_value_heads": 1}, 3, None),
        ({"num_attention_heads": 12, "intermediate_size": 100}, 3, "an intermediate size of 100"),
    ],
)
def test_a_model_that_vllm_cannot_divide_is_a_fault(shape: dict[str, int], gpus: int, told: str | None) -> None:
    whole = {"vocab_size": 96, "hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 1, **shape}
    engine = {"num_gpus": gpus, "tensor_parallel_size": gpus}
    model: dict[str, Any] = {"model": "/nowhere/other", "model_shape": whole}
    config = parse_config({**model, "engine": engine, "learner": {"num_gpus": 1}})
    faults = [each.text for each in plan_checks(config)]
    assert len(faults) == (told is not None)
    assert all(told is not None and told in fault for fault in faults)
