"""A run of a model whose chat template opens a thought where a reply begins, if it is told to."""

from pathlib import Path

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from cluster.commands.train import run_training
from spag_ray.episodes.log import read_log
from spag_ray.tokens import THOUGHT
from tests.support.runs import PENALISED, quiet, steps_of, tiny_run
from tests.support.tiny_model import CHAT_TEMPLATE, make_tiny_model

OPENING = "{% if enable_thinking %}<think> {% endif %}"
OPENS = CHAT_TEMPLATE.replace("<|start|>assistant {% endif %}", f"<|start|>assistant {OPENING}{{% endif %}}")
OPENS = OPENS.replace("message['content']", "message['content'].split('</think>')[-1].strip()")


@pytest.fixture
def thinking_model(tmp_path: Path) -> Path:
    folder = make_tiny_model(tmp_path / "thinking", chat_template=OPENS, more_words=THOUGHT)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in THOUGHT])
    assert len(tokenizer) == len(AutoTokenizer.from_pretrained(folder)), "the model has room for them"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parallel
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("local_ray")
def test_thoughts_are_trained_on_and_nobody_else_reads_them(thinking_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(
        thinking_model,
        words,
        chat_template_kwargs={"enable_thinking": True},
        engine={"kind": "transformers"},
        sampling={"temperature": 1.0, "max_new_tokens": 14, "max_thought_tokens": 6},
        game={"payoffs": PENALISED},
        imitation={"games": 12, "learn_from": "all"},
        objective={"learn_from": "both"},
        self_play={"rounds": 2, "games_per_round": 12},
        evaluation={"games": 2},
    )
    folder = tmp_path / "run"
    run_training(config, folder, quiet())
    assert {step["stage"] for step in steps_of(folder)} == {"imitated", "spag-1", "spag-2"}
    tokenizer = AutoTokenizer.from_pretrained(thinking_model)
    opens, closes = tokenizer.convert_tokens_to_ids(list(THOUGHT))
    said = ended = 0
    for log in (folder / "episodes").glob("*.log"):
        for episode in read_log(log):
            for turn in episode.turns:
                assert turn.prompt_ids[-1] == opens
                assert opens not in turn.prompt_ids[:-1]
                assert closes not in turn.prompt_ids
                ids = list(turn.token_ids)
                # After the last mark, as templates cut it; an open thought is all of a reply.
                public = ids[len(ids) - ids[::-1].index(closes) :] if closes in ids else []
                assert turn.text == tokenizer.decode(public, skip_special_tokens=True).strip()
                said += bool(turn.text)
                if turn.forced is not None:
                    start, end = turn.forced
                    assert start == 6
                    assert closes not in ids[:start]
                    assert closes in ids[start:end]
                    assert not any(turn.logprobs[start:end])
                    assert all(turn.logprobs[:start])
                    ended += 1
    assert said > 20
    assert ended > 20
    assert (folder / "report.html").exists()
