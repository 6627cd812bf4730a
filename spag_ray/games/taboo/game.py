"""Adversarial Taboo: an attacker has the defender say a secret word unawares; the defender tries to name it.

game = TabooGame(load_template("chat"), max_turns=5, referee="strict")
game.rule(["It purrs.", "A cat!"], "cat").outcome                              the attacker wins
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Mapping, Sequence

from spag_ray.config.run import RunConfig
from spag_ray.errors import InputError
from spag_ray.game.protocol import SEATS, History, Message, Ruling
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role, next_role
from spag_ray.game.styles import game_renderer
from spag_ray.game.words import STOP_WORDS
from spag_ray.games.taboo.decks import Card, load_deck
from spag_ray.games.taboo.expert import EXPERTS_HABITS, Expert, Habits
from spag_ray.games.taboo.prompt_file import CLAIMS, PromptTemplate, filled, load_template
from spag_ray.games.taboo.referee.folding import is_letters
from spag_ray.games.taboo.referee.judge import ruling_after, undecided
from spag_ray.tokens import Tokenizer

MAX_WORD = 40  # characters of a word that a person chooses


class TabooGame:
    """`template`: the prompt file; `referee`: strict or published; `max_guesses`: of the defender, one a turn. Its own
    scenarios are the words of the shipped deck; a run takes those that `words` of its configuration names."""

    seats = ("attacker", "defender")
    is_exhaustive = False
    guesser = 1
    paid_by_end = True
    claims_from = CLAIMS

    def __init__(
        self, template: PromptTemplate | None = None, max_turns: int = 5, referee: str = "strict", max_guesses: int = 1
    ) -> None:
        self.template = (load_template("chat") if template is None else template).with_guesses(max_guesses)
        self.max_turns = max_turns
        self.max_guesses = max_guesses
        self.rule_set = referee
        self._expert = Expert({}, self.claim)

    @classmethod
    def configured(cls, config: RunConfig) -> TabooGame:
        game = config.game
        # A user's own subclass may have one guess.
        several = {} if game.max_guesses == 1 else {"max_guesses": game.max_guesses}
        return cls(load_template(config.prompts), game.max_turns, game.rules, **several)

    @property
    def claim(self) -> str:
        return self.template.claim

    @property
    def prompt_style(self) -> str:
        return self.template.style

    @property
    def thought_marks(self) -> tuple[str, str] | None:
        return self.template.marks

    def scenarios(self) -> Sequence[str]:
        return sorted(load_deck("everyday"))

    def fact(self, scenario: str) -> str:
        """The word itself."""
        return scenario

    def hidden(self, seat: int, scenario: str) -> Sequence[str]:
        """What tells the attacker the word; the word alone may stand in the rules by chance."""
        if seat != self.guesser:
            return []
        told = [self.template.wordings[0], self.template.instructions]
        lines = [line.strip() for each in told if each for line in each.attacker.splitlines()]
        telling = [line for line in lines if "{target_word}" in line and line != "{target_word}"]
        return [filled(line, scenario, self.max_turns) for line in telling]

    def scenario_of(self, text: str) -> str:
        """One word, in small letters."""
        word = text.strip().lower()
        if len(word.split()) != 1 or len(word) > MAX_WORD or not is_letters(re.sub("[-']", "", word)):
            raise InputError(f"choose one word of letters, of at most {MAX_WORD}; {text[:MAX_WORD]!r} is none")
        if word in STOP_WORDS or not any(map(str.isalpha, word)):
            raise InputError(f"{word!r} is said in almost every sentence; choose another word")
        return word

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        template, role = self.template, SEATS[seat]
        if template.style == "flat":
            return [{"role": "user", "content": flat_text(template, history, role, scenario, self.max_turns)}]
        texts = list(history)
        rules = template.rules(role, scenario, self.max_turns)
        if template.style == "lines":
            texts = [
                text if place % 2 == seat else template.spoken_line(next_role(place), text)
                for place, text in enumerate(texts)
            ]
            opening = rules + template.separator + template.history_title
            opening = "\n".join([opening, *texts[:seat]])
        else:
            opening = f"{rules.strip()}\n\n{''.join(texts[:seat])}".strip()  # some templates drop outer white space
        names = ("user", "assistant")
        contents = [opening, *texts[seat:]]
        return [{"role": names[place % 2], "content": content} for place, content in enumerate(contents)]

    def line_start(self, seat: int) -> str:
        return self.template.spoken_line(SEATS[seat], "")

    def rule(self, history: History, scenario: str) -> Ruling | None:
        last = len(history) - 1
        ruling = ruling_after(history, scenario, self.rule_set, self.max_guesses)
        if ruling is not None:
            return ruling
        # The published player stops at any claim of a guess, even if the published referee does not count it as one.
        is_claim = next_role(last) is Role.DEFENDER and "i know the word" in history[last].lower()
        if len(history) >= 2 * self.max_turns or (self.rule_set == "published" and is_claim):
            return undecided(len(history))
        return None

    def with_cards(self, cards: Mapping[str, Card], habits: Habits = EXPERTS_HABITS) -> TabooGame:
        """The game whose scripted seats are an expert with these cards."""
        game = copy.copy(self)
        game._expert = Expert(cards, self.claim, habits)
        return game

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> str:
        if seat == self.guesser:
            return self._expert.defend(history, len(history) >= 2 * self.max_turns - 1, rng)
        return self._expert.attack(history, scenario, rng)


def taboo_renderer(template: PromptTemplate, tokenizer: Tokenizer, max_turns: int) -> Renderer:
    """The renderer of a prompt file."""
    return game_renderer(TabooGame(template, max_turns), tokenizer, template.style)


def flat_text(template: PromptTemplate, history: History, role: Role, target_word: str, max_turns: int) -> str:
    """The layout `flat`: rules, dialogue and instruction. Also the "query" of training data."""
    speakers = [template.speakers[next_role(place)] for place in range(len(history))]
    lines = [template.line.format(speaker=each, text=text) for each, text in zip(speakers, history, strict=True)]
    dialogue = "\n".join([template.history_title, *lines]) if lines else template.empty_history
    around = template.rules(role, target_word, max_turns), template.instruction(role, target_word, max_turns)
    return f"{around[0]}{template.separator}{dialogue}{template.separator}{around[1]}\n"
