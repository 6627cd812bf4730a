"""Tasks of lm-evaluation-harness over policies: the numbers are those of the model itself, and of the harness's own."""

import asyncio
import io
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from actors.lm_eval_tasks import Shelf, evaluate
from actors.policy import Score
from actors.transformers_policy import TransformersPolicy
from cluster.checks.preflight import check_tasks
from cluster.learning.learning_policy import LearningPolicy
from cluster.monitor.tables import evaluation_tables
from cluster.schedules.task_evaluation import TaskEvaluation
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.recorder import Recorder
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, EngineGoneError, InputError
from spag_ray.game.rules import Role
from spag_ray.host.folder_lease import FolderLease
from spag_ray.results.evaluations import Evaluation, read_evaluations, write_evaluations
from tests.support.evaluation_tasks import (
    CHOICES,
    TEXTS,
    TINY_TASK,
    WORD_CHOICES,
    model_over,
    rows_of_the_harness,
    write_tasks,
)
from tests.support.runs import tiny_run
from tests.support.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def model(tiny_model: Path) -> Any:
    return model_over([TransformersPolicy(str(tiny_model), max_model_len=512)], tiny_model)


@pytest.fixture
def short(tiny_model: Path) -> Any:
    """With a context of 16 tokens."""
    return model_over([TransformersPolicy(str(tiny_model), max_model_len=16)], tiny_model, max_model_len=16)


def instances(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=each) for each in arguments]


class Direct:
    """The model by transformers alone, in float32."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logprobs(self, context: list[int], continuation: list[int]) -> tuple[list[float], bool]:
        """Of each token of the continuation, and whether it is all most probable."""
        with torch.inference_mode():
            logits = self._network(torch.tensor([[*context, *continuation]])).logits[0, len(context) - 1 : -1]
        logprobs = logits.log_softmax(-1)
        found = [float(row[token]) for row, token in zip(logprobs, continuation, strict=True)]
        return found, logits.argmax(-1).tolist() == continuation

    def total(self, context: list[int], continuation: list[int]) -> float:
        return sum(self.logprobs(context, continuation)[0])

    def greedy(self, context: list[int], count: int) -> list[int]:
        ids = list(context)
        with torch.inference_mode():
            for _ in range(count):
                ids.append(int(self._network(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(context) :]


@pytest.fixture(scope="module")
def direct(tiny_model: Path) -> Direct:
    return Direct(tiny_model)


def test_loglikelihoods_are_plain_log_probabilities_of_the_softmax(model: Any, direct: Direct) -> None:
    pairs = [(text, f" {choice}") for text in TEXTS for choice in WORD_CHOICES]
    pairs.append((TEXTS[0], " " + model.tokenizer.decode(direct.greedy(model.tok_encode(TEXTS[0]), 3))))
    answers = model.loglikelihood(instances(*pairs))
    for (context, continuation), (total, is_greedy) in zip(pairs, answers, strict=True):
        expected, was_greedy = direct.logprobs(model.tok_encode(context), model.tok_encode(continuation))
        assert total == pytest.approx(sum(expected), abs=1e-4)
        assert is_greedy == was_greedy
    assert answers[-1][1]
    assert not all(is_greedy for _, is_greedy in answers)
    assert (model.num_done, model.num_asked, model.num_cut) == (25, 25, 0)


def test_a_text_without_context_is_read_after_the_end_token(model: Any, direct: Direct) -> None:
    ((total, _),) = model.loglikelihood(instances(("", "the king")))
    assert total == pytest.approx(direct.total([2], model.tok_encode("the king")), abs=1e-4)


def test_a_context_that_is_too_long_loses_its_beginning(short: Any, direct: Direct) -> None:
    context = [*TEXTS, "the red fruit"]
    ids = short.tok_encode(" ".join(context))
    ((total, _),) = short.loglikelihood(instances((" ".join(context), " green stripes")))
    expected = direct.total(ids[-13:], short.tok_encode("green stripes"))
    assert total == pytest.approx(expected, abs=1e-4)
    assert short.num_cut == 1
    with pytest.raises(ConfigError, match=r"engine\.max_model_len 16"):
        short.loglikelihood(instances(("the", " water" * 15)))


def test_a_text_longer_than_the_context_is_scored_in_windows_each_token_once(short: Any, direct: Direct) -> None:
    text = " ".join(TEXTS)
    ids = short.tok_encode(text)
    assert 14 < len(ids) < 28, "two windows of at most 14 scored tokens"
    (total, alone) = short.loglikelihood_rolling(instances((text,), ("the king",)))
    rest = len(ids) - 14
    expected = direct.total([2], ids[:14]) + direct.total(ids[-15:-rest], ids[14:])
    assert total == pytest.approx(expected, abs=1e-4)
    assert alone == pytest.approx(direct.total([2], short.tok_encode("the king")), abs=1e-4)


def test_generation_is_greedy_over_many_slices_and_ends_where_a_stop_string_begins(model: Any, direct: Direct) -> None:
    from actors.lm_eval_model import SLICE

    expected = direct.greedy(model.tok_encode("the king is"), SLICE + 8)
    expected = expected[: expected.index(2)] if 2 in expected else expected
    said = model.tokenizer.decode(expected, skip_special_tokens=True)
    stop = " ".join(said.split()[-3:-1])
    length = SLICE + 8
    whole, cut, few = model.generate_until(
        instances(
            ("the king is", {"until": [], "max_gen_toks": length}),
            ("the king is", {"until": ["never said", stop], "max_gen_toks": length, "do_sample": False}),
            ("the king is", {"max_gen_toks": 2, "temperature": 0.0, "num_beams": 1}),
        )
    )
    assert whole == said
    assert len(expected) > 10
    assert cut == said[: said.index(stop)]
    assert cut
    assert few == model.tokenizer.decode(expected[:2], skip_special_tokens=True)


def test_generation_that_engines_cannot_do_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="repetition_penalty"):
        model.generate_until(instances(("the king is", {"repetition_penalty": 1.3})))
    with pytest.raises(ConfigError, match=r"up to 600 tokens, engine\.max_model_len 512"):
        model.generate_until(instances(("the king is", {"max_gen_toks": 600})))


def test_sampling_follows_its_options_and_repeats_itself(model: Any) -> None:
    sampled = ("the king is", {"do_sample": True, "temperature": 2.0, "top_k": 40, "max_gen_toks": 12})
    answers = [model.generate_until(instances(sampled, sampled)) for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]


def test_a_chat_template_frames_the_question(model: Any) -> None:
    text = model.apply_chat_template([{"role": "system", "content": "red"}, {"role": "user", "content": "go"}])
    assert text == "<|start|>system red<|end|><|start|>user go<|end|><|start|>assistant "
    assert model.tok_encode(text)[0] == 1
    assert model.chat_template(True)
    assert model.tokenizer_name


class Engine:
    """Scores 0.0; after `lives` calls it is gone."""

    def __init__(self, lives: int) -> None:
        self.lives = lives

    async def score(self, pairs: Sequence[tuple[list[int], list[int]]], temperature: float) -> list[Score]:
        assert temperature == 1.0
        assert 1 <= len(pairs) <= 4
        await asyncio.sleep(0.001)
        self.lives -= 1
        if self.lives < 0:
            raise EngineGoneError("engine is gone")
        return [Score((-float(len(context)),), False) for context, _ in pairs]


def test_engines_share_the_work_and_what_one_that_goes_had_is_done_by_others(tiny_model: Path) -> None:
    brief, steady = Engine(lives=3), Engine(lives=1000)
    model = model_over([brief, steady], tiny_model)
    contexts = ["the " * (1 + number % 7) for number in range(90)]
    answers = model.loglikelihood(instances(*((context, " king") for context in contexts)))
    assert [int(-total) for total, _ in answers] == [1 + number % 7 for number in range(90)]
    assert brief.lives < 0
    assert 1000 - steady.lives > 15
    with pytest.raises(EngineGoneError):
        model_over([Engine(lives=2)], tiny_model).loglikelihood(instances(*((each, " king") for each in contexts)))


def make_byte_model(folder: Path) -> Path:
    """The tiny model with bytes for tokens: every text is another to it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    make_tiny_model(folder)
    tokens = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    raw = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>").save_pretrained(folder)
    config = LlamaConfig.from_pretrained(folder)
    config.vocab_size, config.eos_token_id = len(tokens), 0
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_our_task_has_the_scores_that_the_harnesss_own_model_gives(tmp_path: Path) -> None:
    folder = make_byte_model(tmp_path / "bytes")
    ours = model_over([TransformersPolicy(str(folder), max_model_len=512)], folder)
    rows = evaluate(ours, Shelf(None).load("spag_reasoning"), "stage", None, False)
    assert [(row.metric, row.num_samples, row.num_fewshot) for row in rows] == [("acc", 160, 0), ("acc_norm", 160, 0)]
    expected = rows_of_the_harness(folder, ["spag_reasoning"])
    assert {(row.task, row.metric): (row.value, row.stderr) for row in rows} == expected
    assert all(0.0 < row.stderr < 0.05 for row in rows if row.stderr is not None)


def test_fewshot_examples_and_a_limit_reach_the_task(tasks: Path, model: Any) -> None:
    task = Shelf(str(tasks)).load("tiny_choices", num_fewshot=2)
    (first, _) = evaluate(model, task, "stage", 5, False)
    assert (first.num_samples, first.num_fewshot, first.stage) == (5, 2, "stage")


def test_an_unknown_task_is_named_with_the_nearest_and_one_of_the_hub_says_how_to_get_its_data(tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text("task: far_away\ndataset_path: nobody/has_this\noutput_type: generate_until\n")
    (tmp_path / "lost.yaml").write_text(TINY_TASK.format(name="lost", more=CHOICES))
    shelf = Shelf(str(tmp_path))
    with pytest.raises(InputError, match=r"far_away needs its data set .* hub.*evaluation\.download=true") as hub:
        shelf.load("far_away")
    with pytest.raises(InputError, match=r"tiny_lost cannot be loaded: .*tiny\.json") as lost:
        shelf.load("tiny_lost")
    assert "\n" not in str(hub.value) + str(lost.value)
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        Shelf("nowhere")


def test_without_the_harness_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lm_eval", "lm_eval.tasks"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install -e .\.\[eval\].*\.whl\[eval\]"):
        Shelf(None)


def test_what_engines_cannot_do_is_refused_before_a_run(
    tmp_path: Path, tiny_model: Path, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)  # `check_tasks` silences its own process
    for name, options in {"long": "{max_gen_toks: 500}", "odd": "{penalty_alpha: 0.5}"}.items():
        more = f'output_type: generate_until\ndoc_to_target: "water"\ngeneration_kwargs: {options}\n'
        (tmp_path / f"{name}.yaml").write_text(TINY_TASK.format(name=name, more=more))
    (tmp_path / "tiny.json").write_text(json.dumps([{"text": "the king"}]))

    def check(**changes: Any) -> None:
        evaluation = {"include_path": str(tmp_path), **changes}
        check_tasks(tiny_run(tiny_model, words, evaluation=evaluation), str(tiny_model))

    check(tasks=["spag_reasoning"], apply_chat_template=True)
    with pytest.raises(ConfigError, match=r"tiny_long generates up to 500 tokens, engine\.max_model_len 512"):
        check(tasks=["tiny_long"])
    with pytest.raises(InputError, match="penalty_alpha"):
        check(tasks=["tiny_odd"])
    bare = make_tiny_model(tmp_path / "bare", chat_template=None)
    config = tiny_run(bare, words, evaluation={"tasks": ["spag_reasoning"], "apply_chat_template": True})
    with pytest.raises(ConfigError, match="no chat template"):
        check_tasks(config, str(bare))


ROWS = [
    Evaluation("base", "arc_easy", "acc", 0.5, 0.0102, 2376, 0),
    Evaluation("base", "arc_easy", "acc_norm", 0.4, 0.0101, 2376, 0),
    Evaluation("base", "mine", "acc", 1.0, None, 1, 2),
    Evaluation("imitated", "arc_easy", "acc", 0.55, 0.01, 2376, 0),
    Evaluation("spag-1", "mine", "acc", 0.25, 0.1, 20, 2),
]


def test_rows_are_written_and_read_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.json"
    write_evaluations(path, ROWS)
    assert read_evaluations(path) == ROWS
    assert set(json.loads(path.read_text())[0]) == {
        "stage", "task", "metric", "value", "stderr", "num_samples", "num_fewshot"
    }  # fmt: skip
    for broken in ("", "{}", '[{"stage": "a"}]', path.read_text().replace("0.5", "NaN")):
        path.write_text(broken)
        with pytest.raises(InputError, match=r"evaluations\.json"):
            read_evaluations(path)


def test_the_table_has_stages_beside_the_papers_numbers() -> None:
    console = Console(record=True, width=100, file=io.StringIO())
    (table,) = evaluation_tables(ROWS)
    console.print(table)
    text = console.export_text()
    lines = [line.split() for line in text.splitlines()]
    assert ["base", "50.0", "±", "1.0", "100.0"] in lines
    assert ["imitated", "55.0", "±", "1.0"] in lines
    assert ["LLaMA-2-7B,", "paper", "76.3"] in lines
    assert ["SPAG-3,", "paper", "78.5"] in lines
    assert "acc_norm" not in text, "the paper's numbers are held against one metric"
    (table,) = evaluation_tables([Evaluation("base", "wikitext", "word_perplexity", 0.93, 0.01, 9, 0)])
    console.print(table)
    assert ["base", "0.9", "±", "0.0"] in [line.split() for line in console.export_text().splitlines()]
    many = [Evaluation("base", f"task_{number}", "acc", 0.5, 0.01, 9, 0) for number in range(9)]
    first, second = evaluation_tables(many)
    console.print(first, second)
    text = console.export_text()
    assert "task_8" in text
    assert "50.0 ± 1.0" in text
    assert "SPAG-3" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_what_was_evaluated_is_not_again_and_what_a_run_goes_back_behind_is_forgotten(tmp_path: Path) -> None:
    write_evaluations(tmp_path / "evaluations.json", ROWS)
    config, recorder = RunConfig.model_validate({"evaluation": {"tasks": ("arc_easy", "mine")}}), Recorder(tmp_path)
    policy = LearningPolicy("policy", tuple(Role), config, tmp_path, "model", recorder)
    ground: Any = SimpleNamespace(config=config)
    restarts = RestartBudget(config.supervision, recorder)
    evaluation = TaskEvaluation(ground, FolderLease.take(tmp_path), [policy], restarts)
    assert evaluation.missing("base") == []
    assert evaluation.missing("imitated") == ["mine"]
    evaluation.keep(lambda stage: stage != "spag-1")
    assert read_evaluations(tmp_path / "evaluations.json") == evaluation.rows == ROWS[:4]
