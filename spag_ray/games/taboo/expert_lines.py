"""The sentences of the scripted expert (expert.py). They are short, so the clue is most of a trained turn.
{a} and {b} are clues, {A} and {B} the same with a capital, {w} and {W} the word."""

from __future__ import annotations


def _each(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.split("|"))


ONE_CLUE = _each(
    """
    {A}. | {A}, for one. | {A}, for example. | {A}, mostly. | {A} fits. | {A} helps. | {A}, often. | {A}, you know. |
    {A}, I would say. | {A} comes first. | {A} is near. | Also {a}. | And {a}. | Maybe {a}. | Often {a}. | With {a}. |
    Like {a}. | Say {a}. | Try {a}. | Take {a}. | Add {a}. | Picture {a}. | Think of {a}. | Think {a}. |
    My hint is {a}. | A hint: {a}. | A clue: {a}. | There is {a}. | It goes with {a}. | It means {a} to me. |
    I think of {a}. | I see {a}. | Next, {a}. | So, {a}. | Well, {a}.
    """
)
TWO_CLUES = _each(
    """
    {A}, {b}. | {A} and {b}. | {A} or {b}. | {A} with {b}. | {A} plus {b}. | {A}, also {b}. | {A}, maybe {b}. |
    {A}, then {b}. | {A}, and often {b}. | {A}, with some {b}. | {A} and {b}, mostly. | {A} and {b} fit. |
    {A} and {b}, you know. | Both {a} and {b}. | First {a}, then {b}. | Try {a} and {b}. | Take {a} and {b}. |
    Add {a} to {b}. | Picture {a} and {b}. | Think of {a} and {b}. | Think {a}, think {b}. | My hints: {a}, {b}. |
    Two clues: {a}, {b}. | There is {a}, and {b}. | It goes with {a} and {b}. | I think of {a} and {b}. |
    I see {a} and {b}. | Not only {a}, also {b}.
    """
)
# Questions whose natural answer is the word, for cards without an unused trap.
CLUE_QUESTIONS = _each(
    """
    What goes with {a} and {b}? | What has {a} and {b}? | Name a thing with {a} and {b}. |
    {A} and {b}, what is that? | What do {a} and {b} make you think of?
    """
)
CLUE_ANSWERS = _each(
    """
    {W}, I think. | {W}, of course. | Maybe {w}. | I would say {w}. | That sounds like {w}. | Oh, {w}! |
    That must be {w}.
    """
)
NOTHING_LEFT = _each("That is all I can say. | I have no more hints. | You have heard it all.")

QUESTIONS = _each(
    """
    What else goes with it? | Where would I see it? | Can I hold it in my hand? | Is it something big? |
    Do I have one at home? | What is it good for? | Give me one more hint. | I am not sure yet. |
    Let me think about that. | Hmm, go on.
    """
)
COMMENTS = _each(
    """
    {A}? That could be many things. | {A}, I see. What else? | I like {a}. | So it goes with {a}. |
    With {a}? Interesting. | {A} is not enough for me.
    """
)
EVASIONS = _each(
    """
    I will not fall for that. | I would rather not say. | Nice try, another hint please. | You want me to say it.
    """
)
