"""`spag-ray listen`: any games, any model; every number against a forward pass by hand."""

import math
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.models import load_tokenizer
from cluster.cli import app
from cluster.commands.listen import _games
from cluster.guarded import run_guarded
from spag_ray.episodes.formats import write_games
from spag_ray.game.rules import Outcome
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from tests.support.episodes import game
from tests.support.kuhn_runs import kuhn_game
from tests.support.report_runs import play, write_log
from tests.support.taboo import history_of

Listen = Callable[..., tuple[int, str]]
GAMES: list[dict[str, Any]] = [
    {
        "target_word": "river",
        "max_turns": 2,
        "history": history_of("it is long", "what do you talk about ?", "water", "I know the word! It is `river`!"),
    },
    {
        "target_word": "piano",
        "max_turns": 3,
        "history": history_of("music", "I know the word! It is `tiger`!", "no", "old"),
    },
    {"target_word": "apple", "max_turns": 2, "history": history_of("an apple")},
]


@pytest.fixture
def listen(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> Listen:
    def listen(games: Path, *more: str) -> tuple[int, str]:
        options = ["-o", "engine.dtype=float32", "-o", "prompts=chat"]
        command = ["listen", str(tiny_model), "--games", str(games), *options, *more]
        code = run_guarded(lambda standalone_mode: app(command))
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return listen


def by_hand(model: Path, word: str, dialogue: list[str], max_turns: int) -> tuple[float, bool]:
    """(log p of the word and its closing mark after these turns and a claim's opening, whether they are the first
    choice); the prompt is made of texts, as the chat template has it."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(str(model))
    rules = load_template("chat").wordings[0].defender.replace("{max_turns}", str(max_turns))
    messages = [{"role": "user", "content": f"{rules}\n\n{dialogue[0]}"}]
    messages += [{"role": ("assistant", "user")[place % 2], "content": text} for place, text in enumerate(dialogue[1:])]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text + "I know the word! It is `", add_special_tokens=False).input_ids
    target = tokenizer(f"{word} `", add_special_tokens=False).input_ids
    assert len(target) == 2
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        logprobs = network(torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    said = [float(row[token]) for row, token in zip(logprobs, target, strict=True)]
    return sum(said), logprobs.argmax(-1).tolist() == target


def test_every_number_is_what_the_model_says_by_hand(listen: Listen, tiny_model: Path, tmp_path: Path) -> None:
    write_games(tmp_path / "games.json", GAMES)
    code, printed = listen(tmp_path / "games.json")
    assert code == 0, printed
    assert "2 games of" in printed, printed
    texts = [[turn["content"] for turn in game["history"]] for game in GAMES]
    river = [by_hand(tiny_model, "river", texts[0][:count], 2) for count in (1, 3)]
    piano = by_hand(tiny_model, "piano", texts[1][:1], 3)

    def row(number: int, found: list[tuple[float, bool]]) -> list[str]:
        values = [value for value, _ in found]
        firsts = 100 * statistics.fmean(is_first for _, is_first in found)
        mean_p = statistics.fmean(map(math.exp, values))
        return [str(number), str(len(found)), f"{mean_p:.4f}", f"{statistics.median(values):.2f}", f"{firsts:.1f}", "%"]

    rows = [line.split() for line in printed.splitlines()]
    assert row(1, [river[0], piano]) in rows, printed
    assert row(2, river[1:]) in rows, printed
    low = min(int(10 * math.exp(river[1][0])), 9) / 10
    other_low = min(int(10 * math.exp(piano[0])), 9) / 10
    assert low == other_low == 0.0, "to this model no word is probable"
    assert ["0.0", "to", "0.1", "2", "1", "50", "%"] in rows
    # The control: each word after the other game's first turn.
    gains = [
        river[0][0] - by_hand(tiny_model, "river", texts[1][:1], 3)[0],
        piano[0] - by_hand(tiny_model, "piano", texts[0][:1], 2)[0],
    ]
    assert (found := re.search(r"mean ([+-][\d.]+) nats, median ([+-][\d.]+), above 0 in (\d) of 2 games", printed))
    assert float(found[1]) == pytest.approx(statistics.fmean(gains), abs=0.011)
    assert int(found[3]) == sum(gain > 0 for gain in gains)


def test_guesses_that_end_no_game_are_claims_too(listen: Listen, tmp_path: Path) -> None:
    said = ("it is long", "I know the word! It is `tiger`!", "water", "I know the word! It is `river`!")
    write_games(tmp_path / "games.json", [{"target_word": "river", "max_turns": 2, "history": history_of(*said)}])
    code, printed = listen(tmp_path / "games.json", "-o", "game.max_guesses=2")
    assert code == 0, printed
    assert ["0.0", "to", "0.1", "2", "1", "50", "%"] in [line.split() for line in printed.splitlines()], printed


def test_a_runs_log_is_heard_too(listen: Listen, tiny_model: Path, tmp_path: Path) -> None:
    log = write_log(tmp_path, "eval-base", play(tiny_model, "eval-base", 18))
    code, printed = listen(log)
    assert code == 0, printed
    assert "16 of" in printed, printed
    assert "mean p" in printed, printed
    assert "control: log p" in printed, printed


def test_games_of_another_game_in_a_runs_log_are_left_out(tmp_path: Path) -> None:
    write_log(
        tmp_path, "spag-1", [game(0, Outcome.TIED), replace(kuhn_game("spag-1", 1, "KJ", ("pass",)), game="kuhn")]
    )
    log = tmp_path / "episodes" / "spag-1.log"
    assert [each["target_word"] for each, _ in _games(log, "strict", "taboo")] == ["cat"]


def test_games_of_one_word_have_no_control(listen: Listen, tmp_path: Path) -> None:
    write_games(tmp_path / "games.json", GAMES[:1])
    code, printed = listen(tmp_path / "games.json")
    assert code == 0
    assert "control: none" in printed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("", "empty"),
        ("[{}]", "target_word"),
        ('[{"target_word": "a", "max_turns": 1, "history": [{"role": "attacker", "content": "x"}]}]', "no game in it"),
        (b"\xf0SPG torn", "no game in it"),
        (b"\xff\xfe\x00", "cannot read it"),
    ],
)
def test_files_without_games_are_a_line(listen: Listen, tmp_path: Path, content: str | bytes | None, said: str) -> None:
    path = tmp_path / "games.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, printed = listen(path)
    assert code == 2, printed
    assert said in printed, printed
    assert len(printed.strip().splitlines()) == 1, printed


def test_a_prompt_file_of_ones_own_and_its_referee_are_taken(listen: Listen, tiny_model: Path, tmp_path: Path) -> None:
    write_games(tmp_path / "games.json", GAMES)
    prompts = tmp_path / "mine.yaml"
    shipped = Path(__file__).resolve().parents[3] / "configs" / "prompts" / "chat.yaml"
    prompts.write_text(shipped.read_text() + "claim: 'it is `{word}`'\n")
    _, usual = listen(tmp_path / "games.json")
    _, mine = listen(tmp_path / "games.json", "-o", f"prompts={prompts}")
    assert usual != mine
    renderer = taboo_renderer(load_template(str(prompts)), load_tokenizer(str(tiny_model)), 2)
    assert len(renderer.claim("river").opening_ids) == 3


def test_it_needs_no_ray(tiny_model: Path, tmp_path: Path) -> None:
    write_games(tmp_path / "games.json", GAMES)
    code = (
        "import sys; sys.modules['ray'] = sys.modules['vllm'] = None\n"
        "from cluster.cli import app\n"
        f"app(['listen', {str(tiny_model)!r}, '--games', {str(tmp_path / 'games.json')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "control" in done.stdout, done.stderr[-2000:]
