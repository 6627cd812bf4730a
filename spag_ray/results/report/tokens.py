"""Locates tokens in a turn's text: how many characters each token wrote.

>>> words = ["I", " know", " it", "!", ""]
>>> Aligner(lambda ids: "".join(words[i] for i in ids)).locate((1, 2, 3, 4), "know it!")
Located(thought='', lengths=[4, 3, 1, 0])
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

# Token ids -> their text, without special tokens; U+FFFD replaces incomplete characters.
Decode = Callable[[Sequence[int]], str]
_PART = "\ufffd"
_MOST_IN_PLACE = 32  # tokens decoded at once; if more of them give no complete character, they are not text


class Located(NamedTuple):
    """Where the tokens of a turn are. `thought`: what they say before the text, for the player alone. `lengths`: [L]
    characters of the text that each token wrote; they sum to its length. 0 for a thought's tokens, for white space that
    was stripped, for special tokens, and for all but the last token of a character that several tokens make up."""

    thought: str
    lengths: list[int]


class Aligner:
    """Decodes token ids one by one if that gives the text, else together with the tokens before them. `public`: what of
    a reply may be its text."""

    def __init__(self, decode: Decode, public: Callable[[str], Container[str]] = lambda reply: (reply,)) -> None:
        self._decode = decode
        self._public = public
        self._anchor: tuple[int, str] | None = None  # a token and its text
        self._pieces: dict[int, str] = {}

    def locate(self, token_ids: Sequence[int], text: str) -> Located | None:
        """None if the tokens do not give this text, because they are from another tokenizer."""
        for pieces in (self._one_by_one, self._in_place):
            found = pieces(token_ids)
            if len(found) != len(token_ids):
                continue
            for kept in (found, [*found[:-1], ""]):  # the last token may be a mark that ended the reply
                reply = "".join(kept).strip()
                if text in self._public(reply):
                    return Located(reply.removesuffix(text).strip(), _within(kept, len(text)))
        return None

    def _one_by_one(self, token_ids: Sequence[int]) -> list[str]:
        """Each token's text after another token, because some tokenizers remove the leading space of a token alone."""
        if self._anchor is None:
            alone = ((token, self._decode([token])) for token in token_ids)
            self._anchor = next(((token, text) for token, text in alone if text and _PART not in text), None)
        if self._anchor is None:
            return []
        anchor, before = self._anchor
        for token in set(token_ids) - self._pieces.keys():
            after = self._decode([anchor, token])
            self._pieces[token] = after[len(before) :] if after.startswith(before) else _PART
        return [self._pieces[token] for token in token_ids]

    def _in_place(self, token_ids: Sequence[int]) -> list[str]:
        """Each token's text, decoded together with the tokens before it. A token that ends within a character gets "",
        and the token that completes the character gets all of it."""
        pieces: list[str] = []
        before = begin = 0  # tokens [before, begin) wrote the last complete characters
        for end in range(1, len(token_ids) + 1):
            if end - before > _MOST_IN_PLACE:
                return []
            known = self._decode(token_ids[before:begin]) if begin > before else ""
            text = self._decode(token_ids[before:end])
            if text.endswith(_PART) and end < len(token_ids):
                pieces.append("")
                continue
            pieces.append(text[len(known) :])
            before, begin = (begin if pieces[-1] else before), end
        return pieces


def _within(pieces: Sequence[str], length: int) -> list[int]:
    """The lengths of the pieces within the last `length` characters, without the white space after them."""
    end = len("".join(pieces).rstrip())
    begin = end - length
    lengths, place = [], 0
    for piece in pieces:
        lengths.append(max(0, min(place + len(piece), end) - max(place, begin)))
        place += len(piece)
    return lengths
