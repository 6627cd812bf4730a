"""Adversarial Taboo for tests, in a line."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.arena import Rules
from actors.scripted_policy import ScriptedPolicy
from spag_ray.game.protocol import TABOO, seat_of
from spag_ray.game.rules import Role, next_role
from spag_ray.games.taboo.decks import Card
from spag_ray.games.taboo.expert import EXPERTS_HABITS, Habits
from spag_ray.games.taboo.game import TabooGame
from spag_ray.games.taboo.prompt_file import PromptTemplate, load_template


def taboo_rules(max_turns: int, referee: str = "strict", template: PromptTemplate | None = None) -> Rules:
    return Rules(TabooGame(template, max_turns, referee), TABOO)


def expert_of(
    cards: Mapping[str, Card],
    encode: Callable[[str], Sequence[int]],
    habits: Habits = EXPERTS_HABITS,
    max_turns: int = 5,
    claim: str | None = None,
    **options: Any,
) -> ScriptedPolicy:
    """The scripted seats of a game with these cards."""
    chat = load_template("chat")
    template = chat if claim is None else chat.model_copy(update={"claim": claim})
    return ScriptedPolicy(TabooGame(template, max_turns).with_cards(cards, habits), encode, **options)


def history_of(*texts: str) -> list[dict[str, str]]:
    """A game as files have it; the attacker begins."""
    return [{"role": str(next_role(number)), "content": text} for number, text in enumerate(texts)]


def messages_of(
    template: PromptTemplate, said: Sequence[tuple[Role, str]], role: Role, word: str, max_turns: int
) -> list[dict[str, str]]:
    """What a seat reads after these turns."""
    game = TabooGame(template, max_turns)
    return [dict(each) for each in game.messages(seat_of(role), [text for _, text in said], word)]
