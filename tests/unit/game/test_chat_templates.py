"""benchmarks.chat_templates says which templates play, with which thoughts, and why others do not."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import chat_templates
from benchmarks.chat_templates import Row, byte_tokenizer, tried
from spag_ray.game.renderer import Renderer
from tests.support.families import CHATML, INST, tokenizer_of

CHANNELS = (
    "{% for message in messages %}<|start|>{{ message['role'] }}"
    "{{ '<|channel|>final' if message['role'] == 'assistant' }}"
    "<|message|>{{ message['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


@pytest.mark.parametrize(
    ("family", "thoughts", "anew"),
    [
        ("chatml", "none", False),
        ("hybrid", "the model's", False),
        ("empty-past", "the model's", True),
        ("thinking", "opened by the template", True),
        ("closed-past", "opened by the template", True),
    ],
)
def test_every_prompt_is_what_the_template_writes(family: str, thoughts: str, anew: bool) -> None:
    assert tried(family, tokenizer_of(family)) == Row(family, "exact", thoughts, anew)


def test_the_marks_of_a_template_are_tokens(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(CHATML + "{# <think> </think> #}")
    assert len(tokenizer.encode("<|im_end|><think>x")) == 3
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.decode(tokenizer.encode("<think>"), skip_special_tokens=True) == "<think>"


def test_a_template_with_channels_is_refused_with_the_text_that_differs() -> None:
    row = tried("channels", byte_tokenizer(CHANNELS))
    assert row.result.startswith(
        "refused: the chat template puts '<|end|><|start|>assistant<|channel|>final<|message|>'"
    )
    assert "and '<|end|><|start|>assistant' where a reply begins" in row.result


def test_other_tokens_and_an_overheard_thought_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = Renderer.prompt
    monkeypatch.setattr(Renderer, "prompt", lambda *args: (*prompt(*args), 5))
    assert tried("chatml", tokenizer_of("chatml")).result == "other tokens"
    monkeypatch.setattr(Renderer, "prompt", prompt)
    monkeypatch.setattr(Renderer, "public", lambda _, reply, is_ended=False: reply)
    with pytest.raises(AssertionError, match="the other seat gets what was said"):
        tried("hybrid", tokenizer_of("hybrid"))


def test_a_row_for_each_template_and_a_sum_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "plays.jinja", tmp_path / "channels.jinja", tmp_path / "inst.jinja"]
    for path, template in zip(paths, (CHATML, CHANNELS, INST), strict=True):
        path.write_text(template, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["chat_templates", *map(str, paths)])
    chat_templates.main()
    *rows, last = capsys.readouterr().out.splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["plays", "channels", "inst"]
    assert json.loads(last) == {"templates": 3, "play": 2, "exact": 2}


def test_a_game_can_be_printed_turn_by_turn() -> None:
    lines: list[str] = []
    tried("hybrid", tokenizer_of("hybrid"), lines)
    assert lines[0] == "hybrid:"
    assert [line.strip() for line in lines[1::4]] == ["attacker", "defender"] * 3
    assert all(" of the tokens that it read and sampled last) " in line for line in lines[10::4])
    assert all("I wonder" in line for line in lines[3::4]), "what is sampled has the thought"
    assert not any("I wonder" in line for line in (*lines[2::4], *lines[4::4]))
    assert lines[4].endswith("'Boats go on it.'")
