"""How a model plays, as probabilities: of given replies at given decisions of a game, from the log-probabilities of
their tokens.

    asked = spelled(renderer, game.decisions())                 every spelling of every reply, as tokens
    scores = await policy.score([each.tokens for each in asked], temperature)
    found = probabilities(asked, [score.logprobs for score in scores])        [{reply: probability}] by decision

The probability of a reply is that of all its tokens and of a token that ends it, summed over the usual tokens that end
a reply without changing its text, and over a leading space, which the parser drops. A text that is cut into tokens in
an unusual way is not counted, so the sum over all legal replies is at most 1, and 1 minus it is an upper bound of the
illegal mass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from spag_ray.errors import EngineError
from spag_ray.game.protocol import SEATS, Decision, seat_to_move
from spag_ray.game.renderer import Renderer
from spag_ray.game.turn import Turn

MOST_ROUNDED = 1.2  # a sum of probabilities that rounding may give


class Spelling(NamedTuple):
    """A reply as tokens: `number` of the decision; `prompt_ids` [P], `target_ids` [L]."""

    number: int
    reply: str
    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]

    @property
    def tokens(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What a policy scores."""
        return self.prompt_ids, self.target_ids


def spelled(renderer: Renderer, decisions: Sequence[Decision]) -> list[Spelling]:
    """Every counted spelling of every reply, in the order of the decisions."""
    regular = renderer.end_ids[0]
    found = []
    for number, decision in enumerate(decisions):
        closing = renderer.closing_ids  # of a thought that the prompt opens: replies are asked for without one
        prompt = _prompt(renderer, decision) + closing
        for reply in decision.replies:
            usual, other = (ids[len(closing) : -1] for ids in renderer.spelled_ids(reply))
            ended = dict.fromkeys((*usual, end) for end in renderer.usual_ends)
            ended[renderer.reply_ids(reply)[len(closing) :]] = None  # ".\n" is one token to some tokenizers
            found += [Spelling(number, reply, prompt, ids) for ids in ended]
            if other != usual and renderer.text_of(closing + other) == reply:
                found.append(Spelling(number, reply, prompt, (*other, regular)))
    return found


def probabilities(asked: Sequence[Spelling], logprobs: Sequence[Sequence[float]]) -> list[dict[str, float]]:
    """{reply: probability} of each decision, in order; `logprobs` [L] of each spelling's tokens. Spellings are scored
    in passes of their own, whose rounding (bfloat16) may make the sum of a sure decision more than 1: it is 1 then.
    Raises EngineError where it is much more."""
    found: list[dict[str, float]] = [{} for _ in range(1 + max((each.number for each in asked), default=-1))]
    for each, values in zip(asked, logprobs, strict=True):
        of_decision = found[each.number]
        of_decision[each.reply] = of_decision.get(each.reply, 0.0) + math.exp(sum(values))
    for of_decision in found:
        if (total := sum(of_decision.values())) > MOST_ROUNDED:
            raise EngineError(f"the probabilities of {list(of_decision)} add up to {total:.3g}")
        if total > 1:
            of_decision.update({reply: share / total for reply, share in of_decision.items()})
    return found


def _prompt(renderer: Renderer, decision: Decision) -> tuple[int, ...]:
    """What the seat reads if earlier replies were spelled in the regular way."""
    game, history, scenario = renderer.game, decision.history, decision.scenario
    *movers, role = (SEATS[seat_to_move(game, history[:count], scenario)] for count in range(len(history) + 1))
    turns: list[Turn] = []
    for mover, text in zip(movers, history, strict=True):
        turns.append(renderer.told_turn(turns, mover, text, scenario, "told"))
    return renderer.prompt(turns, role, scenario)
