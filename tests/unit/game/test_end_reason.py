"""Why a game ended: the referee sets it, whatever it says in words; the labels that count it never change."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import Payoffs
from spag_ray.episodes.episode import Episode, GameCount
from spag_ray.game.game_form import out_of_room
from spag_ray.game.rules import GAME_ENDS, EndReason, Role, Verdict, end_of, next_role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.referee.judge import judge, undecided
from spag_ray.training_data.game_samples import game_samples

LABELS = [
    "attacker win: wrong guess", "attacker win: said the word", "defender win: right guess",
    "attacker breach: said the word", "attacker breach: guessed", "attacker breach: empty reply",
    "attacker breach: spoke for the other", "defender breach: empty reply",
    "defender breach: spoke for the other", "none tie: undecided", "none tie: context full",
]  # fmt: skip
# What the attacker says, what the defender answers, and how each referee counts the game.
GAMES = [
    ("It purrs.", "A dog?", "none tie: undecided", "none tie: undecided"),
    ("It purrs.", "A cat?", "attacker win: said the word", "attacker win: said the word"),
    ("It purrs.", "I know the word! It is dog", "attacker win: wrong guess", "attacker win: wrong guess"),
    ("It purrs.", "I know the word! It is cat", "defender win: right guess", "defender win: right guess"),
    ("A cat.", "Oh.", "attacker breach: said the word", "attacker breach: said the word"),
    ("I know the word! It is dog", "", "attacker breach: guessed", "attacker breach: guessed"),
    ("", "Oh.", "attacker breach: empty reply", "none tie: undecided"),
    ("It purrs.", "", "defender breach: empty reply", "none tie: undecided"),
    ("It purrs.\nDefender: Oh.", "", "attacker breach: spoke for the other", "none tie: undecided"),
    ("It purrs.", "Oh.\nAttacker: Go on.", "defender breach: spoke for the other", "none tie: undecided"),
]
# Pieces of replies, among them words of the referees' own messages.
PIECES = ["cat", "said", "I know the word! It is ", "dog", "made a guess", "no turn", "Defender: ", "\n", ".", " ", ""]


def judged(attacker: str, defender: str, word: str, rules: str) -> Verdict:
    said = [{"role": "attacker", "content": attacker}, {"role": "defender", "content": defender}]
    return judge(said, word, 3, rules)


def test_the_labels_are_those_that_dashboards_and_logs_know() -> None:
    assert [str(end) for end in GAME_ENDS] == LABELS
    for end, label in zip(GAME_ENDS, LABELS, strict=True):
        assert "{seat} {result}: {reason}".format(**end.labels) == label


@pytest.mark.parametrize(("attacker", "defender", "strict", "published"), GAMES)
def test_a_referee_says_why_a_game_ended(attacker: str, defender: str, strict: str, published: str) -> None:
    assert str(end_of(judged(attacker, defender, "cat", "strict"))) == strict
    assert str(end_of(judged(attacker, defender, "cat", "published"))) == published


def test_every_reason_is_reached_but_the_one_of_old_logs() -> None:
    reached = {judged(attacker, defender, "cat", "strict").end_reason for attacker, defender, *_ in GAMES}
    reached |= {out_of_room(Role.DEFENDER, 1).end_reason, undecided(6).end_reason}
    assert reached == set(EndReason) - {EndReason.OTHER}


@pytest.mark.parametrize("rules", ["strict", "published"])
@pytest.mark.parametrize("word", ["said", "guess", "turn", "room"])
def test_a_target_word_out_of_the_referees_messages_changes_no_reason(rules: str, word: str) -> None:
    assert str(end_of(judged(f"My {word}.", "", word, rules))) == "attacker breach: said the word"
    assert str(end_of(judged("It is.", "I know the word! It is dog", word, rules))) == "attacker win: wrong guess"
    guess = f"I know the word! It is {word}"
    assert str(end_of(judged("It is.", guess, word, rules))) == "defender win: right guess"


replies = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


@settings(max_examples=200)
@given(st.lists(replies, max_size=4), st.sampled_from(["strict", "published"]), st.text(max_size=30))
def test_rewording_changes_neither_counts_nor_what_is_learned(said: list[str], rules: str, words: str) -> None:
    turns = tuple(Turn(next_role(n), text, (1,), (2,), (-0.5,), "p") for n, text in enumerate(said))
    history = [{"role": str(turn.role), "content": turn.text} for turn in turns]
    verdict = judge(history, "cat", 2, rules)
    assert end_of(verdict) in GAME_ENDS
    for each in (verdict, out_of_room(next_role(len(turns)), len(turns))):
        plain = Episode("s/1", 1, "s", "cat", 2, rules, 1.0, turns, each)
        reworded = replace(plain, verdict=replace(each, reason=words))
        counts = GameCount(), GameCount()
        for count, episode in zip(counts, (plain, reworded), strict=True):
            count.add(episode)
        assert counts[0] == counts[1]
        assert [str(end) for end in counts[1].ends] == [str(end_of(each))]
        objective = ObjectiveConfig(learn_from="both", baseline="mean", role_weights="none")
        payoffs = Payoffs(tie=(0, 0))
        assert game_samples([plain], objective, payoffs) == game_samples([reworded], objective, payoffs)
