"""The prompt style `lines`: each seat reads one text that grows by lines."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.models import load_tokenizer
from spag_ray.errors import ConfigError
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role, next_role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from tests.support.families import tokenizer_of
from tests.support.taboo import messages_of

RULES = "Hints that make one think of river, and do not say river. Replies to them.\nGame:\n"
HEARD = "Hint: Long, water.\nReply: Where would I see it?\n"


@pytest.fixture(params=["smollm2", "chatml", "llama"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return tokenizer_of(request.param)


@pytest.fixture
def renderer(tokenizer: Any) -> Renderer:
    return taboo_renderer(load_template("lines"), tokenizer, 4)


def played(renderer: Renderer, *texts: str) -> list[Turn]:
    turns: list[Turn] = []
    for text in texts:
        role, tokens = next_role(len(turns)), renderer.reply_ids(text)
        turns.append(Turn.unsampled(role, text, renderer.prompt(turns, role, "river"), tokens, "p"))
    return turns


def shown(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))


def test_a_seat_reads_the_rules_and_a_line_a_turn_up_to_its_own_name(tokenizer: Any, renderer: Renderer) -> None:
    assert shown(tokenizer, renderer.prompt([], Role.ATTACKER, "river")) == RULES + "Hint:"
    turns = played(renderer, "Long, water.", "Where would I see it?")
    assert shown(tokenizer, renderer.prompt(turns, Role.ATTACKER, "river")) == RULES + HEARD + "Hint:"
    defender = shown(tokenizer, turns[1].prompt_ids)
    assert defender.endswith("\nGame:\nHint: Long, water.\nReply:")
    assert "river" not in defender
    said = [(turn.role, turn.text) for turn in turns]
    opening, own, heard = messages_of(load_template("lines"), said, Role.ATTACKER, "river", 4)
    read = f"{opening['content']}\nHint: {own['content']}\n{heard['content']}\nHint:"
    assert read == RULES + HEARD + "Hint:", "a player behind an API reads the same"


def test_a_prompt_goes_on_from_the_seats_last_one_token_by_token(renderer: Renderer) -> None:
    turns = played(renderer, "Long, water.", "What else?", "It flows.", "I know the word! It is river!")
    for before, after in ((turns[0], turns[2]), (turns[1], turns[3])):
        own = before.prompt_ids + before.token_ids
        assert after.prompt_ids[: len(own)] == own


def test_what_the_other_said_cannot_open_a_line(tokenizer: Any, renderer: Renderer) -> None:
    turns = played(renderer, "Water.\nReply: river\n\nHint: bank")
    text = shown(tokenizer, renderer.prompt(turns, Role.DEFENDER, "river"))
    assert text.endswith("Game:\nHint: Water. Reply: river Hint: bank\nReply:")


def test_a_line_that_was_cut_or_ended_by_another_token_is_closed_once(tokenizer: Any, renderer: Renderer) -> None:
    turns = played(renderer, "Water.", "What else?")
    whole = renderer.prompt(turns, Role.ATTACKER, "river")
    for said in (turns[0].token_ids[:-1], (*turns[0].token_ids[:-1], tokenizer.eos_token_id)):
        cut = replace(turns[0], token_ids=said, logprobs=(0.0,) * len(said))
        assert renderer.prompt([cut, turns[1]], Role.ATTACKER, "river") == whole


def test_sampling_stops_at_every_token_that_ends_a_line(tokenizer: Any, renderer: Renderer) -> None:
    stops = set(renderer.stop_ids)
    assert renderer.end_ids == tuple(tokenizer.encode("\n", add_special_tokens=False))
    assert stops > {*renderer.end_ids}
    assert tokenizer.eos_token_id in stops
    with_line = {token for token in range(len(tokenizer)) if "\n" in tokenizer.decode([token])}
    assert with_line <= stops
    assert not stops & set(tokenizer.encode(" plain, words.", add_special_tokens=False))
    assert renderer.text_of(renderer.reply_ids("It flows.")) == "It flows."


def test_a_claim_and_a_spoken_word_begin_with_the_space_of_a_reply(tokenizer: Any, renderer: Renderer) -> None:
    claim = renderer.claim("river")
    assert claim.opening_ids + claim.word_ids == renderer.reply_ids("I know the word! It is river!")[:-1]
    assert shown(tokenizer, claim.opening_ids[: claim.num_deciding]) == " I know the word"
    spoken = renderer.spoken("river")
    assert [shown(tokenizer, ids) for ids in (*spoken.start, *spoken.later)] == [" river", " River", " river"]


def test_an_answer_outside_the_game_may_have_lines(tokenizer: Any, renderer: Renderer) -> None:
    assert shown(tokenizer, renderer.query_ids("Count.")) == "Count.\n"
    answer = renderer.answer_ids("one\ntwo")
    assert shown(tokenizer, answer) == "one\ntwo"
    assert answer[-1] == tokenizer.eos_token_id


def test_where_no_token_ends_a_line_the_one_that_ends_a_text_does(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    found = taboo_renderer(load_template("lines"), tokenizer, 4)
    assert found.end_ids == (tokenizer.eos_token_id,)
    assert found.reply_ids("big water")[-1:] == found.end_ids
    first, second, third, _ = played(found, "big water", "what ?", "long river", "go on")
    assert third.prompt_ids[: len(first.prompt_ids + first.token_ids)] == first.prompt_ids + first.token_ids
    assert second.prompt_ids.count(tokenizer.eos_token_id) == 2, "after the rules, and after what was heard"


@pytest.mark.parametrize(
    ("style", "change", "fault"),
    [
        ("lines", "line: '{text} said {speaker}'", "with `style: lines`, `line` ends with"),
        ("lines", "instructions: {attacker: 'Go on.', defender: 'Go on.'}", "in `lines` nobody would read them"),
        ("chat", "instructions: {attacker: 'Go on.', defender: 'Go on.'}", "in `chat` nobody would read them"),
        ("flat", "line: '- {speaker}:'", "has no {text}"),
        ("flat", "line: '- {who}: {text}'", "has another mark than"),
        ("flat", "line: '- {speaker}: {text} {0}'", "has another mark than"),
        ("flat", "speakers: {attacker: Hint}", "give a name to the attacker and to the defender"),
    ],
)
def test_a_line_that_cannot_be_continued_or_written_or_says_nothing_is_refused(
    style: str, change: str, fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"style: {style}\nwordings: [{{attacker: '{{target_word}}', defender: 'Guess.'}}]\n{change}\n")
    with pytest.raises(ConfigError, match=f"mine.yaml: .*{re.escape(fault)}"):
        load_template(str(path))
