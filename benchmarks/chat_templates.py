"""Whether games can be played with chat templates, and what becomes of thoughts.

    python -m benchmarks.chat_templates TEMPLATE [TEMPLATE ...]     Jinja files, or folders of models
    python -m benchmarks.chat_templates TEMPLATE --turns            also the game, turn by turn

For a Jinja file the tokenizer has a token for each byte, and the marks that its template names. A game of Adversarial
Taboo is played in which both seats think, if the model may, and every prompt is compared, token by token, with what the
template itself writes for that seat. A row says `exact` if all are the same, `space` if they are but for a space at the
end, which belongs to the reply's first word; or why the template is refused. With --turns, a turn is printed as what
its seat reads (without what the prompt has in common with the seat's turn before, which a token tree computes once),
what it samples and is trained on, and what the other seat hears. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from actors.models import load_tokenizer
from cluster.guarded import run_guarded
from spag_ray.errors import InputError, ModelError
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role, next_role
from spag_ray.game.styles import game_renderer
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.game import TabooGame
from spag_ray.tokens import THOUGHT

WORD, SECRET = "river", "I wonder"
SAID = ("Boats go on it.", "Is it long?", "Very long.", "Is it `deep`?", "Deep & wide.", "I know the word: `river`")
# The marks of families as templates name them: <|im_end|>, <｜User｜>, <think>, [INST], <end_of_turn>, <s>.
MARKS = re.compile(r"</?[|｜][^<>{}'\"\s]*[|｜]>|<[|]?[a-z_]+[|]?>|</[a-z]+>|\[/?[A-Z_]{3,}\]|<[|][a-z]+>|<[a-z]+[|]>")
ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<｜end▁of▁sentence｜>", "<|end|>", "</s>")


class Row(NamedTuple):
    """What became of a template. `thoughts`: whose they are; `anew`: no prompt continues the one before."""

    name: str
    result: str
    thoughts: str
    anew: bool


def byte_tokenizer(template: str) -> Any:
    """A tokenizer with a token for each byte and the marks of a template; marks of thoughts are no special tokens."""
    end = next((mark for mark in ENDS if mark in template), "</s>")
    names = {"eos_token": end} | ({"bos_token": "<s>"} if "bos_token" in template else {})
    marks = {mark for mark in MARKS.findall(template) if mark not in THOUGHT}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={character: n for n, character in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(mark, normalized=False) for mark in sorted({*marks, *names.values()})])
    raw.add_tokens([AddedToken(mark, normalized=False) for mark in THOUGHT if mark in template])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **names)
    tokenizer.chat_template = template
    return tokenizer


def tried(name: str, tokenizer: Any, lines: list[str] | None = None) -> Row:
    """The row of a template; its game is added to `lines`. Raises AssertionError if a player could read another's
    thought."""
    game = TabooGame()
    try:
        renderer = game_renderer(game, tokenizer, "chat")
    except ModelError as error:
        return Row(name, f"refused: {error}", "", anew=False)
    results, turns = set(), list[Turn]()
    if lines is not None:
        lines.append(f"{name}:")
    for place, text in enumerate(SAID):
        role = next_role(place)
        prompt_ids = renderer.prompt(turns, role, WORD)
        results.add(_compared(tokenizer, prompt_ids, game.messages(place % 2, SAID[:place], WORD)))
        turns.append(_turn(renderer, role, prompt_ids, text))
        assert turns[-1].text == text, "the other seat gets what was said"
        assert SECRET not in tokenizer.decode(prompt_ids), "a thought is nobody else's"
        if lines is not None:
            lines += _told(tokenizer, turns)
    opens = "opened by the template" if renderer.opens_thoughts else "the model's"
    result = next(each for each in ("other tokens", "space", "exact") if each in results)
    return Row(name, result, opens if renderer.thinks else "none", bool(renderer.renders_anew))


def _compared(tokenizer: Any, prompt_ids: tuple[int, ...], messages: Any) -> str:
    whole = tokenizer.apply_chat_template([dict(each) for each in messages], tokenize=False, add_generation_prompt=True)
    for result, text in {"exact": whole, "space": whole.rstrip(" ")}.items():
        if prompt_ids == tuple(tokenizer.encode(text, add_special_tokens=False)):
            return result
    return "other tokens"


def _turn(renderer: Renderer, role: Role, prompt_ids: tuple[int, ...], text: str) -> Turn:
    """The turn of a player that thinks first, if its model may."""
    thought = f"{'' if renderer.opens_thoughts else THOUGHT[0]}\n{SECRET}.\n{THOUGHT[1]}\n\n" if renderer.thinks else ""
    ids = renderer.reply_ids(text)
    if thought:
        said = renderer.tokenizer.encode(thought + text, add_special_tokens=False)
        ids = (*said, renderer.end_ids[0])
    return Turn.unsampled(role, renderer.text_of(ids), prompt_ids, ids, "template")


def _told(tokenizer: Any, turns: list[Turn]) -> list[str]:
    """The last turn, in lines of text with escapes."""
    turn, own = turns[-1], [each for each in turns[:-1] if each.role is turns[-1].role]
    last = own[-1].prompt_ids + own[-1].token_ids if own else ()
    pairs = zip(turn.prompt_ids, last, strict=False)
    size = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    read = tokenizer.decode(turn.prompt_ids[size:])
    before = f"({size} of the tokens that it read and sampled last) " if size else ""
    return [
        f"  {turn.role}",
        f"    reads    {before}{read!r}",
        f"    samples  {tokenizer.decode(turn.token_ids)!r}: {turn.num_tokens} tokens, all trained on",
        f"    says     {turn.text!r}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("templates", nargs="+", type=Path)
    parser.add_argument("--turns", action="store_true", help="print the game of each template, turn by turn")
    options = parser.parse_args()
    rows, lines = [], list[str]()
    for path in options.templates:
        try:
            tokenizer = load_tokenizer(str(path)) if path.is_dir() else byte_tokenizer(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}); give a template's file, or a model folder") from error
        rows.append(tried(path.stem, tokenizer, lines if options.turns else None))
        print(*lines, sep="\n", end="\n" * bool(lines))
        lines.clear()
        print(f"| {rows[-1].name} | {rows[-1].result} | {rows[-1].thoughts} | {'anew' if rows[-1].anew else ''} |")
    plays = sum(not row.result.startswith("refused") for row in rows)
    print(json.dumps({"templates": len(rows), "play": plays, "exact": sum(row.result == "exact" for row in rows)}))


if __name__ == "__main__":
    raise SystemExit(run_guarded(lambda **_: main()))
