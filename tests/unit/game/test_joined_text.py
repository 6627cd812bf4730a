"""Where texts join, their token ids are those of the whole text, for the tokenizers of seven families."""

import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as some
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from spag_ray.errors import ModelError
from spag_ray.game.protocol import seat_of
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role, next_role
from spag_ray.game.styles import game_renderer
from spag_ray.game.turn import Turn, one_line
from spag_ray.game.words import top_words
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.taboo.game import flat_text, taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.tokens import begin_ids, holds_a_mark, plain_ids, published_ids, template_ids
from spag_ray.training_data.replay import episode_from_game, published_samples
from tests.support.families import REAL, tokenizer_of
from tests.support.taboo import messages_of

FAMILIES = (*REAL, "llama2-always")
TALK = (
    "Where would you cross it?",
    'On a bridge, or "by boat"; it\'s 3.5 km long (in 2024)!',
    "Yes... \n\nand then",
    "l'été, 河流 и река 🦜",
    "It flows past `old` towns:",
    "I know the word! It is `river`!",
)

TEXTS = some.lists(some.text(some.characters(codec="utf-8"), max_size=30).map(str.strip), min_size=4, max_size=6)


def played(renderer: Renderer, texts: Sequence[str], word: str = "river") -> list[Turn]:
    turns: list[Turn] = []
    for text in texts:
        role, ids = next_role(len(turns)), renderer.reply_ids(text)
        turns.append(Turn.unsampled(role, text, renderer.prompt(turns, role, word), ids, "file"))
    return turns


def framed(tokenizer: Any, said: Sequence[tuple[Role, str]], role: Role) -> tuple[int, ...]:
    """The prompt of a chat, as the tokenizer itself makes it of the template's text."""
    messages = messages_of(load_template("chat"), said, role, "river", 5)
    return template_ids(tokenizer, tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_in_pieces_has_the_ids_of_the_whole_chat(family: str) -> None:
    tokenizer = tokenizer_of(family)
    renderer = taboo_renderer(load_template("chat"), tokenizer, 5)
    turns = played(renderer, TALK)
    for number, turn in enumerate(turns):
        said = [(each.role, each.text) for each in turns[:number]]
        assert turn.prompt_ids == framed(tokenizer, said, turn.role), number


@pytest.mark.parametrize("family", FAMILIES)
def test_a_flat_prompt_has_the_ids_of_the_whole_text(family: str) -> None:
    tokenizer, template = tokenizer_of(family), load_template("flat")
    renderer = taboo_renderer(template, tokenizer, 5)
    turns = played(renderer, TALK)
    for number, turn in enumerate(turns):
        whole = flat_text(template, [each.text for each in turns[:number]], turn.role, "river", 5)
        assert turn.prompt_ids == begin_ids(tokenizer) + tuple(tokenizer.encode(whole, add_special_tokens=False))


@pytest.mark.parametrize("family", FAMILIES)
def test_lines_in_pieces_have_the_ids_of_the_whole_text(family: str) -> None:
    tokenizer, template = tokenizer_of(family), load_template("lines")
    renderer = taboo_renderer(template, tokenizer, 5)
    turns = played(renderer, TALK)
    for number, turn in enumerate(turns):
        said = [(each.role, one_line(each.text)) for each in turns[:number]]
        messages = messages_of(template, said, turn.role, "river", 5)
        assert turn.prompt_ids == renderer.whole_ids(messages, seat_of(turn.role)), number


@pytest.mark.parametrize("style", ["chat", "lines"])
@pytest.mark.parametrize("family", FAMILIES)
def test_another_games_messages_in_pieces_have_the_ids_of_the_whole(style: str, family: str) -> None:
    tokenizer, game = tokenizer_of(family), KuhnPoker()
    renderer = game_renderer(game, tokenizer, style)
    for texts in ((), ("check",), ("check", "bet")):
        messages = [dict(each) for each in game.messages(len(texts) % 2, list(texts), "KJ")]
        if style == "chat":
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            whole = template_ids(tokenizer, text)
        else:
            text = "".join(f"{each['content']}\n" for each in messages)
            whole = begin_ids(tokenizer) + template_ids(tokenizer, text)
        turns = played(renderer, texts, "KJ")
        assert renderer.prompt(turns, next_role(len(texts)), "KJ") == whole


@pytest.mark.parametrize("style", ["chat", "flat"])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_text_of_players_joins_as_in_the_whole(family: str, style: str) -> None:
    tokenizer, template = tokenizer_of(family), load_template(style)
    renderer = taboo_renderer(template, tokenizer, 5)

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(TEXTS)
    def check(texts: list[str]) -> None:
        assume(not any(holds_a_mark(tokenizer, text) for text in texts))  # in the pieces it is plain text
        turns = played(renderer, texts)
        said = [(turn.role, turn.text) for turn in turns[:-1]]
        if style == "chat":
            whole = framed(tokenizer, said, turns[-1].role)
        else:
            query = flat_text(template, texts[:-1], turns[-1].role, "river", 5)
            whole = begin_ids(tokenizer) + template_ids(tokenizer, query)
        assert turns[-1].prompt_ids == whole

    check()


@pytest.mark.parametrize("family", FAMILIES)
def test_text_that_continues_another_has_its_ids_in_the_whole(family: str) -> None:
    tokenizer = tokenizer_of(family)
    talk = " ".join(TALK).replace("\n\n", "\n").split(" ")
    for cut in range(1, len(talk)):
        first, second = " ".join(talk[:cut]), " " + " ".join(talk[cut:])
        pieces = plain_ids(tokenizer, first) + plain_ids(tokenizer, second, follows=True)
        assert pieces == plain_ids(tokenizer, first + second), (first, second)
    assert plain_ids(tokenizer, "It flows.\nHint: It") == (
        plain_ids(tokenizer, "It flows.\n") + plain_ids(tokenizer, "Hint: It", follows=True)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_published_row_and_a_game_of_the_same_texts_have_the_same_ids(family: str) -> None:
    tokenizer, template = tokenizer_of(family), load_template("flat")
    history = [{"role": str(next_role(number)), "content": text} for number, text in enumerate(TALK)]
    game = {"target_word": "river", "max_turns": 5, "history": history}
    episode = episode_from_game(game, 0, "file", taboo_renderer(template, tokenizer, 5), "published")
    rows: list[dict[str, Any]] = [
        {
            "query": flat_text(template, TALK[:number], turn.role, "river", 5),
            "target": turn.text,
            "reward": 1.0,
            "weight": 1.0,
            "role": str(turn.role),
        }
        for number, turn in enumerate(episode.turns)
    ]
    samples, _ = published_samples(rows, tokenizer)
    for row, turn, sample in zip(rows, episode.turns, samples, strict=True):
        assert published_ids(tokenizer, row["query"], row["target"]) == (turn.prompt_ids, turn.token_ids)
        assert sample.turns[0] == replace(sample.turns[0], prompt_ids=turn.prompt_ids, target_ids=turn.token_ids)


@pytest.mark.parametrize("style", ["chat", "flat", "lines"])
@pytest.mark.parametrize("family", FAMILIES)
def test_two_hundred_words_can_be_claimed_or_are_refused_with_the_reason(family: str, style: str) -> None:
    tokenizer, template = tokenizer_of(family), load_template(style)
    renderer = taboo_renderer(template, tokenizer, 5)
    refused = []
    for word in random.Random(0).sample(top_words(5000), 200):
        try:
            claim = renderer.claim(word)
        except ModelError as error:
            refused.append((word, str(error)))
            continue
        text = template.claim.format(word=word)
        assert renderer.text_of(claim.opening_ids + claim.word_ids) == text
        assert tokenizer.decode(claim.named_ids).strip() == word
        ids = claim.opening_ids + claim.word_ids
        assert ids == renderer.reply_ids(text)[: len(ids)]
    assert all(f"joins {word!r} to the text beside it" in reason for word, reason in refused)
    assert len(refused) <= 10


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}</s>{% endfor %}<s>assistant:", None),
        (
            "{% for m in messages %}# {{ m['role'] }}\n{{ m['content'] }}\n{% endfor %}# assistant\n",
            "ends a reply with text",
        ),
        ("{% for m in messages %}<s>{{ m['content'] }}2</s>{% endfor %}<s>", "with text"),
    ],
)
def test_a_chat_template_whose_replies_end_without_a_token_is_refused(template: str, reason: str | None) -> None:
    tokenizer = deepcopy(tokenizer_of("llama2"))
    tokenizer.chat_template = template
    if reason is None:
        taboo_renderer(load_template("chat"), tokenizer, 5)
        return
    with pytest.raises(ModelError, match=f"{reason}.* set `prompts: flat`") as caught:
        taboo_renderer(load_template("chat"), tokenizer, 5)
    assert "\n" not in str(caught.value)
    assert taboo_renderer(load_template("flat"), tokenizer, 5).prompt([], Role.ATTACKER, "river")


def test_a_tokenizer_that_cuts_the_whole_in_another_way_is_refused_with_the_place() -> None:
    """`:Is` is one token to it, and a reply follows `assistant:`."""
    tokenizer = deepcopy(tokenizer_of("chatml"))
    turn = "{{ m['role'] }}:{{ m['content'] }}<|im_end|>"
    tokenizer.chat_template = f"{{% for m in messages %}}{turn}{{% endfor %}}assistant:"
    tokenizer.add_tokens([AddedToken(":It is", normalized=False)])
    with pytest.raises(ModelError, match=r"cuts a dialogue of the chat template in another way .* near .*:It is"):
        taboo_renderer(load_template("chat"), tokenizer, 5)


def test_marks_that_take_the_white_space_beside_them_are_joined_as_in_the_whole() -> None:
    """As Phi-3's, whose line ends after a mark are in its template but not in its tokens."""
    raw = deepcopy(tokenizer_of("llama2").backend_tokenizer)
    raw.add_special_tokens([AddedToken(f"<|{name}|>", rstrip=True) for name in ("user", "assistant", "end")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    message = "{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}"
    tokenizer.chat_template = f"{{% for m in messages %}}{message}{{% endfor %}}{{{{ '<|assistant|>\n' }}}}"
    renderer = taboo_renderer(load_template("chat"), tokenizer, 5)
    turns = played(renderer, TALK)
    said = [(turn.role, turn.text) for turn in turns[:-1]]
    assert turns[-1].prompt_ids == framed(tokenizer, said, turns[-1].role)
    assert tokenizer.encode("\n", add_special_tokens=False)[-1] not in turns[0].prompt_ids[-2:]
