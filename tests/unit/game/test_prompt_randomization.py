"""`render: varied`: prompts drawn at random, the same for the same seed, and the defender never reads the word."""

import random
from pathlib import Path

import pytest

from spag_ray.episodes.episode import Episode
from spag_ray.errors import ConfigError
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict, next_role
from spag_ray.game.turn import Turn
from spag_ray.training_data.prompt_randomization import load_varied, rerendered


class Letters:
    """A tokenizer with one token per character, that remembers nothing."""

    eos_token_id = 0
    bos_token_id = 1

    def encode(self, text: str, **_: object) -> list[int]:
        return [ord(letter) for letter in text]


def text_of(token_ids: tuple[int, ...]) -> str:
    return "".join(chr(token) for token in token_ids if token > 1)


TURNS = tuple(
    Turn(next_role(index), text, (9, 9), (7, 0), (-0.5, -0.1), "p")
    for index, text in enumerate([" It purrs. ", "A dog?", "It has whiskers.", "I know the word! It is `cat`!"])
)
VERDICT = Verdict(Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS, 4, "r", 3, None)
EPISODE = Episode("s/1", 1, "s", "zebra", 4, "strict", 1.0, TURNS, VERDICT)


def test_the_shipped_file_has_as_many_prompts_as_the_published_method() -> None:
    prompts = load_varied("varied")
    assert len(prompts.wordings) >= 8
    assert len(prompts.separators) >= 7
    assert len(prompts.names) >= 5
    assert len(prompts.layouts) >= 3
    assert len(set(prompts.wordings)) == len(prompts.wordings)
    rng = random.Random(0)
    said = [(turn.role, turn.text) for turn in TURNS[:2]]
    drawn = {prompts.draw(rng, said, Role.ATTACKER, "zebra", 4) for _ in range(2000)}
    assert len(drawn) > 700


def test_turns_are_rendered_anew_from_their_text_and_the_same_again_for_the_same_seed() -> None:
    prompts = load_varied("varied")
    (one,), (again,), (other,) = (rerendered([EPISODE], prompts, Letters(), seed) for seed in (0, 0, 1))  # type: ignore[arg-type]
    assert one == again != other
    first, last = one.turns[0], one.turns[3]
    assert first.prompt_ids[0] == 1
    assert text_of(first.token_ids) == "It purrs."
    assert first.token_ids[-1] == 0
    assert "It has whiskers." in text_of(last.prompt_ids)
    assert "It purrs." in text_of(last.prompt_ids)
    assert one.verdict == EPISODE.verdict
    assert one.history == EPISODE.history


def test_what_no_micro_batch_holds_is_cut_from_the_left() -> None:
    prompts = load_varied("varied")
    [whole], [cut] = (rerendered([EPISODE], prompts, Letters(), 0, *most) for most in ((), (60,)))  # type: ignore[arg-type]
    assert max(len(turn.prompt_ids) + len(turn.token_ids) for turn in whole.turns) > 60
    for turn, before in zip(cut.turns, whole.turns, strict=True):
        assert len(turn.prompt_ids) + len(turn.token_ids) <= 60
        assert turn.token_ids == before.token_ids
        assert before.prompt_ids[-len(turn.prompt_ids) :] == turn.prompt_ids


def test_only_the_attacker_is_told_the_word_under_every_prompt() -> None:
    prompts = load_varied("varied")
    for seed in range(200):
        (episode,) = rerendered([EPISODE], prompts, Letters(), seed)  # type: ignore[arg-type]
        told = ["zebra" in text_of(turn.prompt_ids) for turn in episode.turns]
        assert told == [True, False, True, False]
        assert not any("{" in text_of(turn.prompt_ids) for turn in episode.turns)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('the secret word is "{target_word}". Write', "Write", "never tells"),
        ("You are the {defender}. Write", "It is {target_word}. Write", "takes? it out|take it out"),
        ("separators:", "separatorz:", "separatorz"),
        ("defender: Guest", "guest: Guest", "guest"),
        ("{speaker}", "{name}", r"layouts.0.line: '- {name}: {text}' has another mark than {speaker} and {text}"),
        (": {text}", ":", r"layouts.0.line: '- {speaker}:' has no {text}"),
        (
            '["{rules}", "{dialogue}", "{task}"]',
            '["{rules}", "{rules}", "{task}"]',
            "layouts.0.pieces: .* each of them once",
        ),
    ],
)
def test_a_file_of_ones_own_is_checked(tmp_path: Path, old: str, new: str, fault: str) -> None:
    shipped = Path(__file__).resolve().parents[3] / "configs" / "prompts" / "varied.yaml"
    text = shipped.read_text(encoding="utf-8")
    assert old in text
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=fault):
        load_varied(str(mine))
