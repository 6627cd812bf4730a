"""What is found wrong before anything is started: words that a defender cannot listen to."""

import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from actors.models import load_tokenizer
from cluster.checks import preflight, vllm_build
from cluster.checks.preflight import (
    check_claims,
    check_files,
    check_learning,
    check_listener,
    check_model,
    check_playing,
    check_rows,
    check_run,
    check_training_data,
    check_words,
)
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, ModelError
from spag_ray.game.words import top_words
from spag_ray.games.kuhn import KuhnPoker
from tests.support.model_folders import change_json
from tests.support.taboo import history_of


def prompts(folder: Path) -> str:
    """A prompt file whose claim joins no word but "river"."""
    text = "{target_word} {max_turns}"
    data = {
        "style": "flat",
        "wordings": [{"attacker": text, "defender": "{max_turns}"}],
        "instructions": {"attacker": text, "defender": "go"},
        "claim": "it is`{word}`",
    }
    (folder / "prompts.yaml").write_text(json.dumps(data))
    return str(folder / "prompts.yaml")


def joining_model(tiny_model: Path, folder: Path) -> str:
    """The tiny model's tokenizer with a token for "`river"."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model, local_files_only=True)
    tokenizer.add_tokens(["`river"])
    tokenizer.save_pretrained(folder / "model")
    return str(folder / "model")


def test_a_word_that_the_tokenizer_joins_to_its_claim_is_named_in_one_line(tiny_model: Path, tmp_path: Path) -> None:
    model = joining_model(tiny_model, tmp_path)
    config = parse_config({"prompts": prompts(tmp_path), "objective": {"listening_coeff": 0.5}})
    check_claims(config, model, ["tiger", "apple"])
    with pytest.raises(ModelError, match="joins 'river'") as caught:
        check_claims(config, model, ["tiger", "river"])
    assert "\n" not in str(caught.value)
    file = tmp_path / "games.json"
    file.write_text(json.dumps([{"history": [], "target_word": "river", "max_turns": 5}]))
    from_file = config.model_copy(update={"imitation": config.imitation.model_copy(update={"source": str(file)})})
    with pytest.raises(ModelError, match="joins 'river'"):
        check_claims(from_file, model, ["tiger"])


OWN = """
class Asks:
    seats = ("host", "guest")
    max_turns = 2
    is_exhaustive = True
    {guesser}
    claim, claims_from = "I bet on {{word}}.", "I bet"
    def fact(self, scenario): return scenario
    def scenarios(self): return ["river", "tiger"]
    def messages(self, seat, history, scenario):
        return [{{"role": "user", "content": "Hints: " + {heard}}}]
    def rule(self, history, scenario): return None
"""


def own_game(folder: Path, heard: str = "' '.join(history)", guesser: str = "guesser = 1") -> RunConfig:
    (folder / "mine.py").write_text(OWN.format(heard=heard, guesser=guesser))
    game = {"name": f"{folder}/mine.py:Asks"}
    settings = {"game": game, "imitation": {"enabled": False}, "objective": {"information_gain": 0.5}}
    return parse_config(settings).each_game[0]


@pytest.mark.parametrize("style", ["chat", "flat", "lines"])
def test_a_listener_has_something_to_read_before_the_first_hint_in_every_style(style: str, tiny_model: Path) -> None:
    config = parse_config({"prompts": style, "objective": {"information_gain": 0.5}})
    check_listener(config, str(tiny_model), ["tiger", "river"])


def test_a_game_that_tells_a_listener_nothing_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    check_listener(own_game(tmp_path), str(tiny_model), ["tiger"])
    (tmp_path / "river").mkdir()
    fails = own_game(tmp_path / "river", heard="{'tiger': 'a'}[scenario] + ' '.join(history)")
    with pytest.raises(ConfigError, match=re.escape("messages(1, [], 'river') of ")):
        check_listener(fails, str(tiny_model), ["tiger", "river"])
    for folder, changes, said in (
        ("a", {"guesser": ""}, "hides no fact that a seat may claim (`Guessing` in docs/games"),
        ("b", {"heard": "history[-1]"}, "messages(1, [], 'tiger') of "),
    ):
        (tmp_path / folder).mkdir()
        with pytest.raises(ConfigError) as caught:
            check_listener(own_game(tmp_path / folder, **changes), str(tiny_model), ["tiger"])
        assert said in str(caught.value)
        assert "information_gain: 0" in str(caught.value) or "set it to 0" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_listeners_own_folder_and_tokenizer_are_checked(tiny_model: Path, tmp_path: Path) -> None:
    given = {"information_gain": 0.5, "listener": joining_model(tiny_model, tmp_path)}
    shutil.copy(tiny_model / "config.json", tmp_path / "model")
    shutil.copy(tiny_model / "model.safetensors", tmp_path / "model")
    config = parse_config({"prompts": prompts(tmp_path), "objective": given})
    check_listener(config, str(tiny_model), ["tiger"])
    with pytest.raises(ModelError, match="joins 'river'"):
        check_listener(config, str(tiny_model), ["tiger", "river"])
    lost = parse_config({"objective": {"information_gain": 0.5, "listener": str(tmp_path / "lost")}})
    with pytest.raises(ModelError, match="no such model folder"):
        check_files(lost)


def test_rows_of_training_data_cannot_be_listened_to(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    row = {"query": "q", "target": "t", "reward": 1.0, "weight": 1.0, "role": "attacker"}
    file.write_text(json.dumps([row]))
    settings: dict[str, Any] = {"source": str(file)}
    check_files(parse_config({"imitation": settings, "objective": {"listening_coeff": 0.5}}))
    with pytest.raises(ConfigError, match=r"imitation.listening_coeff: .*rows\.json has rows"):
        check_files(parse_config({"imitation": {**settings, "listening_coeff": 0.5}}))


def test_a_long_row_is_refused_before_learn_begins_its_only_pass(tiny_model: Path) -> None:
    config, tokenizer = parse_config({"learner": {"max_tokens_per_microbatch": 512}}), load_tokenizer(str(tiny_model))
    rows = [{**LONG_ROW, "query": "q"}, {**LONG_ROW, "type": "sft"}]
    check_training_data(config, str(tiny_model), "data.json", rows[:1], tokenizer)
    with pytest.raises(ConfigError, match=r"data\.json: row 1 has 6\d\d tokens, and a micro-batch holds 512: raise"):
        check_training_data(config, str(tiny_model), "data.json", rows, tokenizer)


INSTRUCTIONS = [{"instruction": "say", "input": "", "output": output} for output in ("it", "water " * 600)]
LONG_ROW = {"query": "water " * 600, "target": "t", "reward": 1.0, "weight": 1.0, "role": "attacker"}
LONG_GAME = {"history": history_of("water " * 300, "no", "music " * 300, "no"), "target_word": "tiger", "max_turns": 5}


@pytest.mark.parametrize(
    ("part", "key", "content", "told"),
    [
        ("self_play", "sft_file", INSTRUCTIONS, r"row 1 has 6\d\d tokens"),
        ("imitation", "sft_file", INSTRUCTIONS, r"row 1 has 6\d\d tokens"),
        ("imitation", "source", [{**LONG_ROW, "query": "q"}, LONG_ROW], r"row 1 has 6\d\d tokens"),
        ("imitation", "source", [LONG_GAME], r"game 0 has \d+ tokens"),
    ],
)
def test_a_row_or_a_game_of_a_file_that_no_micro_batch_holds_is_refused_before_the_run(
    part: str, key: str, content: Any, told: str, tiny_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps(content))
    settings = {"prompts": prompts(tmp_path), part: {key: str(file)}}
    check_rows(parse_config(settings), str(tiny_model))
    with pytest.raises(ConfigError, match=rf"data.json: {told}, and a micro-batch holds 512: raise"):
        check_rows(parse_config({**settings, "learner": {"max_tokens_per_microbatch": 512}}), str(tiny_model))


GERMAN = "Du verteidigst. Wenn du das Wort kennst, sag: Ich kenne das Wort! Es ist `X`!"
TOLD = "You defend. If you know it, say: I know the word!\nIt is `X`!"


def german(folder: Path, defender: str, claim: str = "I know the word! It is `{word}`") -> str:
    wordings = [{"attacker": "Du greifst an. Das Wort ist {target_word}.", "defender": defender}]
    (folder / "german.yaml").write_text(json.dumps({"style": "chat", "wordings": wordings, "claim": claim}))
    return str(folder / "german.yaml")


def test_a_prompt_file_may_tell_any_claim_that_the_strict_referee_accepts(tmp_path: Path) -> None:
    prompts = german(tmp_path, "Say: I now know the word! It is `X`!", "I now know the word! It is `{word}`!")
    check_words(parse_config({"prompts": prompts}), {"taboo": ["river"]}, {"taboo": []})
    with pytest.raises(ConfigError, match="is no guess to the published referee"):
        check_words(
            parse_config({"prompts": prompts, "game": {"rules": "published"}}), {"taboo": ["river"]}, {"taboo": []}
        )


@pytest.mark.parametrize("rules", ["strict", "published"])
@pytest.mark.parametrize(
    ("defender", "claim", "fault"),
    [
        (
            TOLD,
            "Ich kenne das Wort! Es ist `{word}`!",
            r"the claim 'Ich kenne das Wort! Es ist `\{word\}`!' is no guess",
        ),
        (TOLD, "I do not know the word! It is {word}", "is no guess"),
        (
            GERMAN,
            "I know the word! It is `{word}`",
            r"wording 0 tells the defender no claim that the \w+ referee accepts",
        ),
        (TOLD, "I know the word! It is `{word}`", None),
    ],
)
def test_a_prompt_file_whose_claim_the_referee_never_accepts_is_refused(
    rules: str, defender: str, claim: str, fault: str | None, tmp_path: Path
) -> None:
    config = parse_config({"prompts": german(tmp_path, defender, claim), "game": {"rules": rules}})
    if fault is None:
        check_words(config, {"taboo": ["Hund", "p.m."]}, {"taboo": ["river"]})
        return
    with pytest.raises(ConfigError, match=rf"^prompts: \S*german\.yaml: .*{fault}") as caught:
        check_words(config, {"taboo": ["Hund"]}, {"taboo": ["river"]})
    assert 'write "I know the word! It is `X`!"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_claim_of_every_word_of_a_run_is_judged_in_seconds() -> None:
    words = top_words(50_000)
    started = time.process_time()
    for rules in ("strict", "published"):
        check_words(parse_config({"game": {"rules": rules}}), {"taboo": words}, {"taboo": ["p.m.", "r&b"]})
    assert time.process_time() - started < 15
    with pytest.raises(ConfigError, match=r"names '\. Attacker: x' .* would not win: the defender spoke"):
        check_words(parse_config({}), {"taboo": ["river"]}, {"taboo": [". Attacker: x"]})


FAULTS = {
    "payoffs = (-3.0, 3.0)": "a payoff is -3.0; payoffs are numbers from -2 to 2 (scenario '",
    "payoffs = 0": "the payoffs are 0; give each seat a number",
    "hidden = lambda *_: None": "hidden raises TypeError",
}


@pytest.mark.parametrize("fault", [*FAULTS, ""])
def test_a_game_that_breaks_a_promise_is_refused_before_the_run(
    fault: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("paying.py").write_text(
        "from dataclasses import replace\n"
        "from spag_ray.games.kuhn import KuhnPoker\n\n"
        "class Paying(KuhnPoker):\n"
        "    payoffs = None\n"
        "    def rule(self, history, scenario):\n"
        "        found = super().rule(history, scenario)\n"
        "        return replace(found, payoffs=self.payoffs) if found and self.payoffs is not None else found\n"
        f"    {fault}\n"
    )
    settings: dict[str, Any] = {"game": {"name": "paying.py:Paying"}, "learner": {"packing": "none"}}
    config = parse_config({**settings, "prompts": "lines", "sampling": {"max_new_tokens": 4}})
    words = list(KuhnPoker().scenarios())
    if not fault:
        check_model(config, str(tiny_model), words)
        return
    with pytest.raises(ConfigError) as caught:
        check_model(config, str(tiny_model), words)
    assert str(caught.value).startswith(f"game.name: paying.py:Paying: {FAULTS[fault]}")
    assert str(caught.value).endswith("; spag_ray.game.check lists every fault (docs/games.md)")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("build", "num_gpus", "refused"), [("0.32.0", 0, True), ("0.32.0", 1, False), ("0.32.0+cpu", 0, False)]
)
def test_an_engine_without_a_gpu_is_refused_where_vllm_is_built_for_gpus(
    build: str, num_gpus: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_config({"engine": {"num_gpus": num_gpus}, "learner": {"num_gpus": num_gpus}})
    monkeypatch.setattr(preflight, "check_imports", lambda *_, **__: None)
    check_files(config)
    monkeypatch.setattr(vllm_build, "version", lambda package: {"vllm": build}[package])
    check_learning(config)  # `learn` starts no engine
    for check in (check_files, check_playing):
        if refused:
            with pytest.raises(ConfigError, match=r"vLLM 0\.32\.0 is built for GPUs: use a configuration for GPUs"):
                check(config)
            check(parse_config({"engine": {"kind": "transformers"}}))
        else:
            check(config)


def test_what_only_plays_is_refused_for_what_its_run_would_fail_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_imports", lambda *_, **__: None)
    monkeypatch.setattr("cluster.planning.plan_checks.unknown_argument", lambda names: ", ".join(names) or None)
    engine = parse_config({"engine": {"vllm": {"enforce_eagre": True}}})
    with pytest.raises(ConfigError, match="enforce_eagre"):
        check_playing(engine)
    check_playing(engine, has_engines=False)
    with pytest.raises(ConfigError, match=r"tracking\.callbacks"):
        check_playing(parse_config({"tracking": {"callbacks": ["gone.py:Gone"]}}), has_engines=False)


@pytest.mark.parametrize(
    "learner",
    [
        *({"zero_stage": stage} for stage in (1, 2, 3)),
        {"zero_stage": 0, "dtype": "float32"},
        {"deepspeed": "zero2_offload"},
        {"deepspeed": "zero3_offload"},
    ],
)
def test_any_learner_can_share_its_gpu_with_engines(learner: dict[str, Any]) -> None:
    """How each leaves the GPU: tests/integration/test_learner_sleep.py"""
    shares = {"engine": {"num_gpus": 0.5}, "learner": {"num_gpus": 0.5, **learner}}
    check_files(parse_config({**shares, "placement": "colocated"}))


def test_a_model_that_could_not_be_written_after_its_training_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    long = {"engine": {"max_model_len": 8192}, "learner": {"max_tokens_per_microbatch": 8192}}
    config = parse_config({"model": str(model), "imitation": {"enabled": False}, **long})
    check_run(config, str(model), {"taboo": ["tiger"]}, {"taboo": ["apple"]}, [])
    (model / "generation_config.json").write_text('{"length_penalty": 2.0}')
    with pytest.raises(ModelError, match=r"can be read, but not saved.*length_penalty"):
        check_run(config, str(model), {"taboo": ["tiger"]}, {"taboo": ["apple"]}, [])


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({"evaluation": {"engines": "in_turn", "against": ["base"]}}, True),
        ({"evaluation": {"engines": "in_turn"}}, False),
        ({"evaluation": {"engines": "in_turn"}, "imitation": {"enabled": False}}, True),
        ({"evaluation": {"engines": "own", "against": ["base"]}}, False),
    ],
)
def test_a_base_that_engines_cannot_play_in_turn_is_refused(
    changes: dict[str, Any], is_refused: bool, tiny_model: Path, tmp_path: Path
) -> None:
    """Engines start from pytorch_model.bin, but take the weights of others only from safetensors."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    long = {"engine": {"max_model_len": 8192}, "learner": {"max_tokens_per_microbatch": 8192}}
    config = parse_config({**long, **changes})
    check_model(config, str(model), ["tiger"])
    with Path(model / "pytorch_model.bin").open("wb") as file:
        torch.save(load_file(model / "model.safetensors"), file)
    (model / "model.safetensors").unlink()
    check_model(config, str(model), ["tiger"], trains=False)
    if not is_refused:
        check_model(config, str(model), ["tiger"])
        return
    with pytest.raises(
        ModelError, match=r"in pytorch_model\.bin, .*as safetensors .*evaluation\.engines: own"
    ) as found:
        check_model(config, str(model), ["tiger"])
    assert "\n" not in str(found.value)


def test_a_micro_batch_below_the_longest_game_is_refused_unless_nothing_is_trained(tiny_model: Path) -> None:
    def config(tokens: int) -> RunConfig:
        learner = {"packing": "none", "max_tokens_per_microbatch": tokens}
        sampling = {"max_new_tokens": 256}
        engine = {"max_model_len": 8192}
        return parse_config({"prompts": "lines", "engine": engine, "learner": learner, "sampling": sampling})

    with pytest.raises(ConfigError, match=r"the rules take \d+ tokens .*max_tokens_per_microbatch is 2048") as caught:
        check_model(config(2048), str(tiny_model), ["tiger"])
    found = re.search(r"raise it to (\d+)", str(caught.value))
    assert found is not None
    check_model(config(int(found[1])), str(tiny_model), ["tiger"])
    with pytest.raises(ConfigError, match=f"raise it to {found[1]}"):
        check_model(config(int(found[1]) - 1), str(tiny_model), ["tiger"])
    check_model(config(2048), str(tiny_model), ["tiger"], trains=False)


def test_a_tokenizer_that_joins_a_line_end_to_more_is_refused_for_lines(tiny_model: Path, tmp_path: Path) -> None:
    """Its text as a whole has tokens that no game has: a reply ends at the line end alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: n for n, letter in enumerate([*letters, "ĊH"])}, [("Ċ", "H")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["</s>"])
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>").save_pretrained(model)
    change_json(model / "config.json", vocab_size=raw.get_vocab_size())
    learner = {"packing": "none", "max_tokens_per_microbatch": 8192}
    settings: dict[str, Any] = {"engine": {"max_model_len": 8192}, "learner": learner}
    check_model(parse_config({**settings, "prompts": "flat"}), str(model), ["tiger"])
    with pytest.raises(
        ModelError, match=r"prompts: lines: the tokenizer cuts .* near .*\\nH.* set `prompts: flat`"
    ) as caught:
        check_model(parse_config({**settings, "prompts": "lines"}), str(model), ["tiger"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, 4096),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default"}}, 4096),
        ({"max_position_embeddings": 4096, "model_max_length": 16384}, 16384),
        ({"n_positions": 1024}, 1024),
        ({}, None),
    ],
)
def test_a_context_is_as_long_as_vllm_lets_it_be(
    settings: dict[str, Any], limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SimpleNamespace(**settings)
    read: Any = SimpleNamespace(get_text_config=lambda: text)

    def check(length: int, **engine: Any) -> None:
        preflight._check_length(parse_config({"engine": {"max_model_len": length, **engine}}), read)

    check(limit or 10**6)
    if limit is not None:
        with pytest.raises(
            ConfigError, match=rf"max_model_len is {limit + 1}, but the model's limit is {limit} tokens"
        ):
            check(limit + 1)
        check(limit + 1, kind="transformers")
        check(limit + 1, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
        monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0")
        with pytest.raises(ConfigError):
            check(limit + 1)


def test_a_value_that_the_chat_template_does_not_use_is_refused(tiny_model: Path) -> None:
    config = parse_config({"model": str(tiny_model), "chat_template_kwargs": {"enable_thinkng": False}})
    with pytest.raises(ConfigError, match=r"chat_template_kwargs.enable_thinkng: the chat template of .* does not use"):
        check_model(config, str(tiny_model), ["river"])
    with pytest.raises(ConfigError, match="chat_template_kwargs: tokenize is no value of a template"):
        parse_config({"chat_template_kwargs": {"tokenize": True}})
