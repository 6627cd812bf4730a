"""Thoughts: what a reply begins with between a prompt file's marks is for its own player alone."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from actors.models import load_tokenizer
from spag_ray.errors import ModelError
from spag_ray.game.decisions import spelled
from spag_ray.game.game_form import verdict_of
from spag_ray.game.protocol import Game
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role, next_role
from spag_ray.game.styles import game_renderer
from spag_ray.game.turn import Turn
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.taboo.game import TabooGame, taboo_renderer
from spag_ray.games.taboo.prompt_file import PromptTemplate, Wording, load_template
from tests.support.families import tokenizer_of

WORDINGS = (Wording(attacker="Hint at {target_word}.", defender="Find the word."),)


@pytest.fixture(params=["smollm2", "chatml", "llama"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return tokenizer_of(request.param)


def chat(tokenizer: Any, **options: Any) -> Renderer:
    return taboo_renderer(PromptTemplate(style="chat", wordings=WORDINGS, **options), tokenizer, 4)


def turn_of(renderer: Renderer, turns: list[Turn], reply: str) -> Turn:
    role, ids = next_role(len(turns)), renderer.reply_ids(reply)
    prompt_ids = renderer.prompt(turns, role, "river")
    return Turn.unsampled(role, renderer.text_of(ids), prompt_ids, ids, "policy")


@pytest.mark.parametrize("style", ["chat", "lines"])
def test_nobody_reads_a_thought_again(style: str) -> None:
    tokenizer = tokenizer_of("chatml")
    layout = {"line": "{speaker}: {text}"} if style == "lines" else {}
    template = PromptTemplate(style=style, wordings=WORDINGS, thought="<think>{thought}</think>", **layout)
    renderer = taboo_renderer(template, tokenizer, 4)
    turns: list[Turn] = []
    for reply in ("<think>Say boat, not river.</think> Boats go on it.", "<think>Is it a lake?</think> Is it long?"):
        turns.append(turn_of(renderer, turns, reply))
    assert [turn.text for turn in turns] == ["Boats go on it.", "Is it long?"]
    said = [turn_of(renderer, [], "Boats go on it.")]
    said.append(turn_of(renderer, said, "Is it long?"))
    assert turns[1].prompt_ids == said[1].prompt_ids
    assert turns[0].token_ids != said[0].token_ids
    assert renderer.prompt(turns, Role.ATTACKER, "river") == renderer.prompt(said, Role.ATTACKER, "river")


@pytest.mark.parametrize("thought", ["<think>\n{thought}\n</think>", "<a>  {thought}  </a>"])
def test_marks_of_a_thought_are_found_as_a_line_has_them(thought: str) -> None:
    """Once the other player, and the referee, read all of such a reply."""
    template = PromptTemplate(style="lines", wordings=WORDINGS, thought=thought, line="{speaker}: {text}")
    renderer = taboo_renderer(template, tokenizer_of("chatml"), 4)
    reply = thought.replace("{thought}", "Say boat, not river.") + " Boats go on it."
    assert turn_of(renderer, [], reply).text == "Boats go on it."
    begun = renderer.reply_ids(reply.partition(", not")[0])[:-1]
    ended = (*begun, *renderer.end_of_thought(begun), *renderer.reply_ids("Boats go on it.")[:-1])
    assert renderer.text_of(ended, is_ended=True) == "Boats go on it."


@pytest.mark.parametrize(
    ("thought", "reply"),
    [
        ("( {thought} )", "( it (river) is wet ) Boats go."),
        ("Thinking: {thought} ;", "Thinking: river; not boat ; Boats go."),
    ],
)
def test_a_space_of_a_mark_counts_in_lines_too(thought: str, reply: str) -> None:
    template = PromptTemplate(style="lines", wordings=WORDINGS, thought=thought, line="{speaker}: {text}")
    assert turn_of(taboo_renderer(template, tokenizer_of("chatml"), 4), [], reply).text == "Boats go."


@pytest.mark.parametrize(
    ("reply", "public"),
    [
        ("[ river ] Is it wet?", "Is it wet?"),
        ("Is it [wet]?", "Is it [wet]?"),
        ("[ river ] [ lake ] Is it?", "Is it?"),
        ("[ river ] [ lake", ""),
        ("[ a ]" * 1200 + " Is it?", "Is it?"),
        ("[ river, a long thought", ""),
        ("[ river ]", ""),
    ],
)
def test_a_thought_is_what_a_reply_begins_with(tokenizer: Any, reply: str, public: str) -> None:
    renderer = chat(tokenizer, thought="[ {thought} ]")
    assert renderer.text_of(renderer.reply_ids(reply)) == public


@pytest.mark.parametrize(
    ("reply", "private"),
    [
        ("[ river, Ufer ]\n\nIs it wet?", "[ river, Ufer ]\n\n"),
        ("[ a longer thought about a river ] [ lake ] Is it?", "[ a longer thought about a river ] [ lake ]"),
        ("Is it [ wet ]?", ""),
        ("[ river, a thought without an end", "[ river, a thought without an end"),
        ("[ river ]", "[ river ]"),
    ],
)
def test_a_replys_private_tokens_are_its_thought_and_the_space_after(tokenizer: Any, reply: str, private: str) -> None:
    renderer = chat(tokenizer, thought="[ {thought} ]")
    turn = turn_of(renderer, [], reply)
    count = renderer.num_private(turn)
    assert tokenizer.decode(turn.token_ids[:count], skip_special_tokens=True).strip() == private.strip()
    if renderer.text_of(turn.token_ids):
        assert renderer.text_of(turn.token_ids[:count]) in ("", private[:1]), "nothing public comes before"
        assert tokenizer.decode(turn.token_ids[count]).strip(), "what is said begins with a word"
    assert chat(tokenizer).num_private(turn_of(chat(tokenizer), [], reply)) == 0, "without marks there is no thought"
    said = turn_of(renderer, [], "[ a ] [ lake ] Is it?")
    again = renderer.reply_ids(said.text)  # as re-rendered prompts have it
    assert renderer.num_private(replace(said, token_ids=again, logprobs=(0.0,) * len(again))) == 0


@pytest.mark.parametrize("thought", ["<think>", "{thought}</think>", "<think> {thought} ", "<think>{word}</think>"])
def test_a_thought_needs_a_mark_on_both_sides(thought: str) -> None:
    with pytest.raises(ValidationError, match="thought"):
        PromptTemplate(style="chat", wordings=WORDINGS, thought=thought)


def sampled(renderer: Renderer, turns: list[Turn], scenario: str, reply: str) -> list[Turn]:
    """The turns and one more, whose marks are the tokens that the model samples."""
    tokenizer = renderer.tokenizer
    role = next_role(len(turns))
    ids = tuple(tokenizer.encode(reply, add_special_tokens=False)) + renderer.end_ids[:1]
    prompt_ids = renderer.prompt(turns, role, scenario)
    return [*turns, Turn(role, renderer.text_of(ids), prompt_ids, ids, (-0.5,) * len(ids), "policy")]


@pytest.mark.parametrize(
    ("game", "scenario", "said", "secret"),
    [
        (TabooGame(), "river", ("Boats go on it.", "Is it long?", "Very long."), "river"),
        (KuhnPoker(), "KJ", ("check", "bet", "fold"), "I have the King"),
    ],
)
@pytest.mark.parametrize("more", ["", "No.</think>\n\n"])
def test_the_thoughts_of_a_model_that_thinks_are_its_own_in_every_game(
    game: Game, scenario: str, said: tuple[str, ...], secret: str, more: str
) -> None:
    tokenizer = tokenizer_of("hybrid")
    renderer = game_renderer(game, tokenizer, "chat")
    turns: list[Turn] = []
    for text in said:
        turns = sampled(renderer, turns, scenario, f"<think>\n{secret}, so wait.\n</think>\n\n{more}{text}")
    assert [turn.text for turn in turns] == list(said), "what the other seat and the referee get"
    thought = f"{secret}, so wait."
    for turn in turns:
        assert thought in tokenizer.decode(turn.token_ids), "all that was sampled is trained on"
        assert thought not in tokenizer.decode(turn.prompt_ids)
        private = renderer.num_private(turn)
        assert renderer.tokenizer.decode(turn.token_ids[private:-1]).strip() == turn.text
    assert verdict_of(game, [turn.text for turn in turns[:2]], scenario) is None
    whole = [dict(each) for each in game.messages(0, list(said[:2]), scenario)]
    whole[1]["content"] = f"<think>\n{thought}\n</think>\n\n{more}{said[0]}"
    expected = tokenizer.apply_chat_template(whole, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(turns[2].prompt_ids) == expected, "the template drops the thought as we do"


def test_a_thought_that_does_not_end_says_nothing_and_other_replies_are_whole() -> None:
    renderer = game_renderer(KuhnPoker(), tokenizer_of("hybrid"), "chat")
    assert renderer.text_of(tokenizer_of("hybrid").encode("<think>\nI have the King")) == ""
    assert renderer.text_of(renderer.reply_ids("check")) == "check"
    assert game_renderer(KuhnPoker(), tokenizer_of("qwen"), "chat").public("<think>a</think> b") == "<think>a</think> b"


SECRET = "The river is the secret."


@pytest.mark.parametrize("family", ["hybrid", "thinking"])
@pytest.mark.parametrize("planned", ["", "[ river plan ] "])
def test_a_model_may_think_before_the_thought_that_the_prompt_file_asks_for(family: str, planned: str) -> None:
    own = PromptTemplate(style="chat", wordings=WORDINGS, thought="[ {thought} ]")
    renderer = taboo_renderer(own, tokenizer_of(family), 4)
    begin = "<think>\n" if family == "hybrid" else ""
    (turn,) = sampled(renderer, [], "river", f"{begin}{SECRET}\n</think>\n\n{planned}Boats go on it.")
    assert turn.text == "Boats go on it."
    private = renderer.num_private(turn)
    assert renderer.tokenizer.decode(turn.token_ids[private:-1]).strip() == turn.text


def test_what_a_game_file_or_an_endpoint_thinks_is_read_in_a_template_that_opens_thoughts() -> None:
    own = PromptTemplate(style="chat", wordings=WORDINGS, thought="<think>{thought}</think>")
    renderer = taboo_renderer(own, tokenizer_of("thinking"), 4)
    ids = renderer.reply_ids(f"<think>{SECRET}</think> Boats go on it.")
    assert renderer.text_of(ids) == "Boats go on it."
    assert renderer.tokenizer.decode(ids).startswith(SECRET), "the prompt has opened it"


@pytest.mark.parametrize("style", ["lines", "flat"])
def test_a_model_that_thinks_is_not_overheard_in_other_styles_either(style: str) -> None:
    renderer = game_renderer(KuhnPoker(), tokenizer_of("hybrid"), style)
    ids = tokenizer_of("hybrid").encode("<think>I have the King.</think> bet")
    assert renderer.text_of(ids) == "bet"
    assert set(ids[:1]).isdisjoint(renderer.stop_ids)


def test_moves_of_a_solved_game_are_asked_for_after_the_thought_that_the_template_opens() -> None:
    game = KuhnPoker()
    renderer = game_renderer(game, tokenizer_of("thinking"), "chat")
    asked = spelled(renderer, game.decisions()[:1])
    assert all(tokenizer_of("thinking").decode(each.prompt_ids).endswith("<think>\n</think>\n\n") for each in asked)
    assert {tokenizer_of("thinking").decode(each.target_ids[:-1]).strip() for each in asked} == {"check", "bet"}


@pytest.mark.parametrize(
    ("family", "before"),
    [
        ("thinking", "I have the King.\n</think>\n\n"),
        ("no-thought", ""),
        ("empty-past", "<think>I have the King.</think>"),
        ("closed-past", "I have the King.</think>"),
        ("same-past", ""),
    ],
)
@pytest.mark.parametrize("own", [None, "<think>{thought}</think>"])
def test_a_template_that_opens_a_thought_is_played_as_it_writes(family: str, before: str, own: str | None) -> None:
    """It leaves this opening out of earlier replies, or puts an empty thought before them, so no prompt continues the
    one before."""
    tokenizer = tokenizer_of(family)
    game = TabooGame(PromptTemplate(style="chat", wordings=WORDINGS, thought=own))
    renderer = game_renderer(game, tokenizer, "chat")
    said = ("Boats go on it.", "Is it long?", "Very long.", "Is it `deep`?")
    turns: list[Turn] = []
    for place, text in enumerate(said):
        turns = sampled(renderer, turns, "river", before + text)
        messages = [dict(each) for each in game.messages(place % 2, said[:place], "river")]
        expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert tokenizer.decode(turns[-1].prompt_ids) == expected
        assert renderer.num_private(turns[-1]) == len(tokenizer.encode(before))
    assert [turn.text for turn in turns] == list(said)
    unthought = renderer.reply_ids("Is it wet?")
    closing = {"thinking": "</think>\n\n", "closed-past": "</think>"}.get(family, "")
    assert tokenizer.decode(unthought[:-1]) == f"{closing}Is it wet?"
    assert renderer.text_of(unthought) == "Is it wet?"
    assert set(tokenizer.encode("<think></think>")).isdisjoint(renderer.stop_ids)
    claim = renderer.claim("river")
    assert renderer.text_of(claim.opening_ids + claim.word_ids) == game.claim.format(word="river")
    assert tokenizer.decode(renderer.spoken("river").start[0]) == "river"


def test_a_thought_that_is_open_before_every_reply_is_refused() -> None:
    with pytest.raises(ModelError, match="opens a thought where a reply begins, and before earlier replies"):
        game_renderer(KuhnPoker(), tokenizer_of("open-past"), "chat")


def test_what_a_template_is_given_besides_messages_decides_about_thoughts(tmp_path: Path) -> None:
    asks = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    tokenizer = deepcopy(tokenizer_of("hybrid"))
    ends = "{% endif %}"  # of the part that begins a reply
    tokenizer.chat_template = tokenizer.chat_template.removesuffix(ends) + asks + ends
    tokenizer.save_pretrained(tmp_path)
    said = {}
    for thinks in (True, False):
        loaded = load_tokenizer(str(tmp_path), {"enable_thinking": thinks})
        renderer = game_renderer(KuhnPoker(), loaded, "chat")
        said[thinks] = loaded.decode(renderer.prompt([], Role.ATTACKER, "KJ"))
    assert said[False] == said[True] + "<think>\n\n</think>\n\n"
    plain = game_renderer(KuhnPoker(), load_tokenizer(str(tmp_path)), "chat")
    assert plain.tokenizer.decode(plain.prompt([], Role.ATTACKER, "KJ")) == said[True]


@pytest.mark.parametrize("family", ["smollm2", "hybrid", "thinking"])
def test_the_shipped_prompts_that_ask_for_thoughts_play(family: str) -> None:
    renderer = taboo_renderer(load_template("chat_thinking"), tokenizer_of(family), 4)
    (turn,) = sampled(renderer, [], "river", f"{'' if family == 'thinking' else '<think>'}{SECRET}</think> Boats.")
    assert turn.text == "Boats."
    assert SECRET not in renderer.tokenizer.decode(renderer.prompt([turn], Role.DEFENDER, "river"))


def test_marks_that_no_text_shows_are_refused_where_a_thought_is_always_open() -> None:
    special = {"additional_special_tokens": ["<think>", "</think>"]}
    for family in ("hybrid", "thinking"):
        tokenizer = deepcopy(tokenizer_of(family))
        tokenizer.add_special_tokens(special)
        if family == "thinking":
            with pytest.raises(ModelError, match="</think> is a special token"):
                game_renderer(KuhnPoker(), tokenizer, "chat")
        else:
            renderer = game_renderer(KuhnPoker(), tokenizer, "chat")
            assert tokenizer.convert_tokens_to_ids("<think>") in renderer.stop_ids, "it says nothing instead"


@pytest.mark.parametrize("family", ["hybrid", "thinking", "empty-past", "closed-past"])
@pytest.mark.parametrize("own", [None, "[ {thought} ]"])
def test_what_ends_a_thought_for_a_player_is_the_mark_that_it_would_write_itself(family: str, own: str | None) -> None:
    tokenizer = tokenizer_of(family)
    renderer = taboo_renderer(PromptTemplate(style="chat", wordings=WORDINGS, thought=own), tokenizer, 4)
    assert renderer.has_thoughts
    begin = "" if renderer.opens_thoughts else "<think>\n"

    def ids_of(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    begun = ids_of(f"{begin}{SECRET}, so it may")
    ending = renderer.end_of_thought(begun)
    assert ending.count(*ids_of("</think>")) == 1
    said = [*begun, *ending, *ids_of("Boats go on it.")]
    assert renderer.text_of(said) == "Boats go on it."
    assert renderer.end_of_thought(said) == ()
    planned = [*begun, *ending, *ids_of("[ boats")]
    if own is None:
        assert renderer.end_of_thought(planned) == ()
    else:  # the thought that the prompt file asks for is open
        assert renderer.text_of([*planned, *renderer.end_of_thought(planned), *ids_of(" Is it wet?")]) == "Is it wet?"


def test_a_reply_without_a_thought_has_none_to_be_ended(tokenizer: Any) -> None:
    plain, own = chat(tokenizer), chat(tokenizer, thought="[ {thought} ]")
    assert not plain.has_thoughts
    assert own.has_thoughts
    assert plain.end_of_thought(plain.reply_ids("[ river")) == ()
    assert own.end_of_thought(own.reply_ids("Is it [ wet")) == ()
    assert own.end_of_thought(own.reply_ids("[ river ] Is it")) == ()
    assert own.text_of([*own.reply_ids("[ river")[:-1], *own.end_of_thought(own.reply_ids("[ river"))]) == ""


def test_in_lines_nothing_that_ends_a_reply_ends_a_thought() -> None:
    renderer = game_renderer(KuhnPoker(), tokenizer_of("hybrid"), "lines")
    ending = renderer.end_of_thought(tokenizer_of("hybrid").encode("<think>I have the King, so"))
    assert len(ending) == 1
    assert set(ending).isdisjoint(renderer.stop_ids)
