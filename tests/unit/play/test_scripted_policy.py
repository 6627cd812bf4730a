"""The scripted expert: it hints by the card, leads to the word, walks into questions, and claims when one card fits."""

from typing import Any

import pytest

from actors.policy import GameView
from actors.scripted_policy import ScriptedPolicy
from benchmarks.expert_games import expert_games
from spag_ray.game.rules import Role
from spag_ray.games.taboo.decks import Card, Trap, load_deck
from spag_ray.games.taboo.expert import EVASIONS, NOTHING_LEFT, ONE_CLUE, TWO_CLUES, Habits
from spag_ray.judge import judge_turn
from tests.support.taboo import expert_of

BUTTER = Card("butter", ("toast", "bread", "cow"), (Trap("What melts on toast?", "Some butter does."),))
CARDS = {
    "butter": BUTTER,
    "river": Card("river", ("water", "bank", "boat", "flows down")),
    "milk": Card("milk", ("cow", "white", "glass", "drink")),
}
SECRET = "something that a defender does not read"
NEVER = Habits(asks=0.0, walks_in=0.0, waits=0.0, last_guess=0.0)


def expert(habits: Habits = NEVER, **options: Any) -> ScriptedPolicy:
    return expert_of(CARDS, lambda text: [3], habits, max_turns=4, **options)


def heard(*said: str) -> GameView:
    """What a defender sees: these lines of the attacker, "Hmm." between them."""
    history = [said[index // 2] if index % 2 == 0 else "Hmm." for index in range(2 * len(said) - 1)]
    return GameView(Role.DEFENDER, tuple(history), SECRET)


def attacking(word: str, *said: str) -> GameView:
    history = [text for hint in said for text in (hint, "Hmm.")]
    return GameView(Role.ATTACKER, tuple(history), word)


def test_at_least_sixty_sentences_hint_with_one_or_two_clues() -> None:
    hints = {*ONE_CLUE, *TWO_CLUES}
    assert len(hints) >= 60
    filled = {line.format(a="oak", A="Oak", b="nut") for line in hints}
    assert len(filled) == len(hints)
    assert all("oak" in line.lower() for line in filled)


def test_an_attacker_gives_clues_of_its_card_each_once() -> None:
    said: list[str] = []
    for turn in range(4):
        said.append(expert(Habits(asks=0.0, pairs=0.0)).reply(attacking("river", *said), f"g/{turn}"))
    assert [sum(clue in line.lower() for line in said) for clue in CARDS["river"].clues] == [1, 1, 1, 1]
    assert expert(Habits(asks=0.0)).reply(attacking("river", *said)) in NOTHING_LEFT


def test_an_attacker_asks_what_leads_to_the_word_but_not_at_once() -> None:
    always = expert(Habits(asks=1.0))
    first = {always.reply(attacking("butter"), str(number)) for number in range(20)}
    later = {always.reply(attacking("butter", "Toast."), str(number)) for number in range(40)}
    assert not any(line.endswith("?") for line in first)
    assert "What melts on toast?" in later
    assert later - {"What melts on toast?"}, "a question made of clues, too"


def test_a_defender_answers_such_a_question_without_noticing_or_sees_through_it() -> None:
    blind, wary = expert(Habits(walks_in=1.0)), expert()
    asked = heard("Bread.", "What melts on toast?")
    assert blind.reply(asked) == "Some butter does."
    assert judge_turn(blind.reply(asked), 3, "butter", "strict") is not None
    assert wary.reply(asked) in EVASIONS
    answer = blind.reply(heard("Bank.", "What goes with water and boat?"))
    assert "river" in answer.lower()


def test_a_defender_claims_when_what_it_heard_singles_out_one_card() -> None:
    assert expert().reply(heard("Water.", "Bank and boat.", "It flows down.")) == "I know the word! It is `river`!"
    assert expert().reply(heard("Toast.", "Bread and cow.")) == "I know the word! It is `butter`!", "all its clues"
    for said in (["Cow."], ["Water.", "Bank and boat."], ["Stone."]):
        reply = expert().reply(heard(*said))
        assert "know the word" not in reply, "not singled out, or too few clues"


def test_a_defender_with_guesses_left_does_not_repeat_a_wrong_one() -> None:
    said = heard("Toast.", "Bread and cow.", "Cow, white, glass.")
    wrong = "I know the word! It is `butter`!"
    history = tuple(wrong if index == 3 else text for index, text in enumerate(said.history))
    eager = expert(Habits(asks=0.0, walks_in=0.0, waits=0.0, last_guess=0.0, min_clues=1))
    assert eager.reply(heard("Toast.", "Bread and cow.")) == wrong
    assert eager.reply(GameView(Role.DEFENDER, history, SECRET)) == "I know the word! It is `milk`!"


def test_a_claim_is_worded_as_the_prompt_file_has_it() -> None:
    reply = expert(claim="The word is {word}!").reply(heard("Water.", "Bank and boat.", "It flows down."))
    assert reply == "The word is river!"


def test_the_last_turn_is_sometimes_a_guess() -> None:
    sure = expert(Habits(waits=0.0, last_guess=1.0))
    assert "know the word" in sure.reply(heard("Cow.", "Cow.", "Cow.", "Cow."))
    assert "know the word" not in sure.reply(heard("Cow.", "Cow.", "Cow."))


@pytest.mark.parametrize("seed", [0, 1])
def test_games_from_the_shipped_deck_end_as_the_docs_say(seed: int) -> None:
    """docs/appendix/laboratory.md: right guesses 40 to 60 %, traps 20 to 35 %, no attacker breaks a rule."""
    ends, _ = expert_games(load_deck("everyday"), seed)
    assert not any("breaks" in end for end in ends), ends
    share = {end: number / ends.total() for end, number in ends.items()}
    assert 0.40 <= share["defender wins: right guess"] <= 0.60, share
    assert 0.20 <= share["attacker wins: said the word"] <= 0.35, share
