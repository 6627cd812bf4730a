"""Small tasks of lm-evaluation-harness, of words that the tiny model knows."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from actors.lm_eval_tasks import Shelf, evaluate
from actors.models import load_tokenizer

# Of words that the tiny model knows.
TINY_TASK = """
task: tiny_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: tiny.json}}}}
test_split: test
doc_to_text: "{{{{text}}}}"
{more}
"""
CHOICES = """
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean}, {metric: acc_norm, aggregation: mean}]
"""
WORDS = """
output_type: generate_until
doc_to_target: "water"
generation_kwargs: {until: ["."], max_gen_toks: 70}
metric_list: [{metric: exact_match, aggregation: mean}]
"""
ROLLING = """
output_type: loglikelihood_rolling
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity, aggregation: weighted_perplexity}]
"""
TEXTS = ("what do you think", "the king is", "it is red and", "where do you go", "a big old", "talk about music")
WORD_CHOICES = ["king", "green stripes", "health", "me"]


def write_tasks(folder: Path) -> Path:
    """A user's own folder of tasks."""
    for name, more in {"choices": CHOICES, "words": WORDS, "rolling": ROLLING}.items():
        (folder / f"{name}.yaml").write_text(TINY_TASK.format(name=name, more=more))
    rows = [{"text": text, "choices": WORD_CHOICES, "answer": number % 4} for number, text in enumerate(TEXTS)]
    (folder / "tiny.json").write_text(json.dumps(rows * 4))
    return folder


_LOOP = asyncio.Runner()  # one for all: a policy belongs to the loop that it first waited in


def model_over(policies: Sequence[Any], folder: Path, max_model_len: int = 512) -> Any:
    from actors.lm_eval_model import PolicyModel

    return PolicyModel(policies, load_tokenizer(str(folder)), max_model_len, at_once=4, run=_LOOP.run)


def rows_of_the_harness(folder: Path, names: Sequence[str], include_path: Path | None = None) -> dict[Any, Any]:
    """{(task, metric): (value, stderr)}, by the harness's own model over transformers."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = HFLM(pretrained=network, tokenizer=load_tokenizer(str(folder)), max_length=510, device="cpu")
    shelf = Shelf(None if include_path is None else str(include_path))
    rows = [row for name in names for row in evaluate(theirs, shelf.load(name), "theirs", None, False)]
    return {(row.task, row.metric): (row.value, row.stderr) for row in rows}
