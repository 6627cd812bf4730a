"""Probabilities of replies from the log-probabilities of their tokens."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from spag_ray.errors import EngineError
from spag_ray.game.decisions import probabilities, spelled
from spag_ray.game.protocol import Decision
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role
from spag_ray.game.styles import game_renderer
from spag_ray.games.kuhn import KuhnPoker
from tests.support.families import REAL, tokenizer_of
from tests.support.ordered_games import Stairs

GAME = KuhnPoker()


@pytest.fixture(params=["chat", "lines"])
def renderer(request: pytest.FixtureRequest) -> Renderer:
    return game_renderer(GAME, tokenizer_of("smollm2"), request.param)


def test_every_reply_at_every_decision_is_spelled_with_each_usual_end(renderer: Renderer) -> None:
    asked = spelled(renderer, GAME.decisions())
    by_reply: dict[tuple[int, str], list[Any]] = {}
    for each in asked:
        by_reply.setdefault((each.number, each.reply), []).append(each)
    assert len(by_reply) == 24
    for (_, reply), spellings in by_reply.items():
        assert len({each.target_ids for each in spellings}) == len(spellings), "nothing is counted twice"
        assert {renderer.text_of(each.target_ids) for each in spellings} == {reply}
        assert spellings[0].target_ids == renderer.reply_ids(reply)
        assert {each.target_ids[-1] for each in spellings} == set(renderer.usual_ends)
        assert any(renderer.tokenizer.decode([each.target_ids[0]]).startswith(" ") for each in spellings)


class Named(KuhnPoker):
    """Lines begin with names, and replies with a space after them."""

    def line_start(self, seat: int) -> str:
        return ("First:", "Second:")[seat]


def test_a_reply_after_a_name_is_spelled_as_it_is_sampled_with_each_usual_end() -> None:
    named = game_renderer(Named(), tokenizer_of("smollm2"), "lines")
    asked = [each for each in spelled(named, Named().decisions()) if (each.number, each.reply) == (0, "check")]
    assert asked, "the first decision"
    said = named.reply_ids("check")[:-1]
    assert [each.target_ids for each in asked] == [
        *((*said, end) for end in named.usual_ends),
        (*named.answer_ids("check")[:-1], named.end_ids[0]),
    ]


class Punctuated(Named):
    """Its replies end with a mark, which some tokenizers join to the end of the line."""

    def decisions(self) -> Sequence[Decision]:
        return [Decision((), "KJ", ("check.", "bet!"))]


@pytest.mark.parametrize("family", REAL)
def test_a_reply_whose_end_takes_in_its_mark_is_counted_as_it_is_imitated(family: str) -> None:
    renderer = game_renderer(Punctuated(), tokenizer_of(family), "lines")
    asked = spelled(renderer, Punctuated().decisions())
    for reply in ("check.", "bet!"):
        assert renderer.reply_ids(reply) in [each.target_ids for each in asked if each.reply == reply]
    assert len({(each.reply, each.target_ids) for each in asked}) == len(asked), "each spelling once"


def test_a_decision_later_in_the_game_is_asked_after_the_earlier_turns(renderer: Renderer) -> None:
    asked = spelled(renderer, GAME.decisions())
    number = next(n for n, each in enumerate(GAME.decisions()) if each.history == ("check", "bet"))
    prompt = next(each.prompt_ids for each in asked if each.number == number)
    opening = renderer.prompt((), Role.ATTACKER, GAME.decisions()[number].scenario)
    assert prompt[: len(opening)] == opening
    assert prompt[len(opening) : len(opening) + 1] == renderer.reply_ids("check")[:1]
    assert "The other player: bet" in renderer.text_of(prompt)


@pytest.mark.parametrize("style", ["chat", "lines"])
def test_a_decision_is_of_the_seat_that_the_game_says(style: str) -> None:
    renderer = game_renderer(Stairs(), tokenizer_of("smollm2"), style)
    [first, *_] = spelled(renderer, [Decision(("go",), "1", ("go", "stop"))])
    opening = renderer.prompt((), Role.DEFENDER, "1")
    own = opening + renderer.reply_ids("go")
    assert first.prompt_ids[: len(own)] == own, "seat 1 opened and has the turn again"


def test_probabilities_are_summed_over_the_spellings_of_a_reply(renderer: Renderer) -> None:
    asked = spelled(renderer, GAME.decisions())
    each = 0.5 / len(asked)
    found = probabilities(asked, [(math.log(each), 0.0)] * len(asked))
    assert len(found) == 12
    assert all(set(shares) == set(decision.replies) for shares, decision in zip(found, GAME.decisions(), strict=True))
    assert sum(sum(shares.values()) for shares in found) == pytest.approx(0.5)
    assert probabilities([], []) == []


def test_a_sure_decision_whose_spellings_are_rounded_up_adds_up_to_one(renderer: Renderer) -> None:
    asked = spelled(renderer, GAME.decisions())
    seen: set[tuple[int, str]] = set()
    logprobs = []
    for each in asked:  # the usual spelling has nearly all
        is_usual = (each.number, each.reply) not in seen
        seen.add((each.number, each.reply))
        logprobs.append([math.log(0.50001 if is_usual else 1e-9)])
    found = probabilities(asked, logprobs)
    assert all(sum(each.values()) == pytest.approx(1, abs=1e-12) for each in found)
    assert GAME.measure(found)["nash_conv"] > 0
    with pytest.raises(EngineError, match="add up to"):
        probabilities(asked, [[0.0] for _ in asked])


def test_scores_of_other_spellings_are_refused(renderer: Renderer) -> None:
    asked = spelled(renderer, GAME.decisions())
    with pytest.raises(ValueError, match="zip"):
        probabilities(asked, [(0.0,)])
