"""Prompt files (configs/prompts/*.yaml): the rules in words, the layout of a dialogue, and the check of their claim.

template = load_template("lines")
template.rules(Role.ATTACKER, "river", max_turns=4)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spag_ray.config.faults import first_fault
from spag_ray.config.loading import find_config
from spag_ray.errors import ConfigError, nearest
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.turn import one_line
from spag_ray.games.taboo.referee.guess import says_claim
from spag_ray.games.taboo.referee.judge import judge_turn
from spag_ray.plain_yaml import parse_yaml

GUESSES = "{max_guesses}"
MARKS = ("target_word", "max_turns")  # in braces, in the texts of every file of prompts


class Wording(BaseModel):
    """One wording of the rules, as each seat reads it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    attacker: str
    defender: str


class PromptTemplate(BaseModel):
    """A prompt file (configs/prompts/*.yaml). The fields after `wordings` are the layout of the styles `flat` and
    `lines`. `lines` has no instructions: a player continues the text after its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    style: Literal["chat", "flat", "lines"]
    wordings: tuple[Wording, ...] = Field(min_length=1)
    separator: str = "\n\n"
    line: str = "- {speaker}: {text}"
    speakers: Mapping[Role, str] = {Role.ATTACKER: "attacker", Role.DEFENDER: "defender"}
    empty_history: str = "The game begins."
    history_title: str = "What was said so far:"
    instructions: Wording | None = None
    claim: str = Field("I know the word! It is `{word}`", pattern=r"^[^{}]+\{word\}[^{}]*$")
    thought: str | None = Field(
        None,
        pattern=r"^[^{}\s][^{}]*\{thought\}[^{}]*[^{}\s]$",
        description="marks around private text at the beginning of a reply, for example <think>{thought}</think>",
    )

    @property
    def marks(self) -> tuple[str, str] | None:
        """What begins and what ends a thought."""
        if self.thought is None:
            return None
        opening, closing = self.thought.split("{thought}")
        return opening, closing

    @property
    def tells_guesses(self) -> bool:
        """Whether the rules that play tell the defender how often it may guess, whatever the number is."""
        return GUESSES in self.wordings[0].defender or GUESSES in getattr(self.instructions, "defender", "")

    def with_guesses(self, number: int) -> PromptTemplate:
        """The template with this number in place of {max_guesses}."""

        def told(text: Wording) -> Wording:
            attacker, defender = (each.replace(GUESSES, str(number)) for each in (text.attacker, text.defender))
            return Wording(attacker=attacker, defender=defender)

        instructions = None if self.instructions is None else told(self.instructions)
        return self.model_copy(update={"wordings": tuple(map(told, self.wordings)), "instructions": instructions})

    def rules(self, role: Role, target_word: str, max_turns: int) -> str:
        """The rules one seat reads; only the attacker's contain the target word."""
        return _told(self.wordings[0], role, target_word, max_turns)

    def spoken_line(self, role: Role, text: str) -> str:
        """A turn as one line of the style `lines`, or the line's beginning if the turn has no text yet."""
        return self.line.format(speaker=self.speakers[role], text=one_line(text)).rstrip()

    def instruction(self, role: Role, target_word: str, max_turns: int) -> str:
        return "" if self.instructions is None else _told(self.instructions, role, target_word, max_turns)


def _told(wording: Wording, role: Role, target_word: str, max_turns: int) -> str:
    return filled(getattr(wording, role), target_word if role is Role.ATTACKER else None, max_turns)


_File = TypeVar("_File", bound=BaseModel)
_SAID = "It has a bed and runs."


def read_prompts(name: str, kind: type[_File], what: str) -> tuple[Path, _File]:
    """The path and the content of a file of prompts, shipped or the user's own. Raises ConfigError for one that is not
    `what`, naming the file and the fault."""
    path = find_config(name, "prompts")
    try:
        return path, kind.model_validate(parse_yaml(path.read_text(encoding="utf-8"), str(path)))
    except ValidationError as error:
        key, fault = first_fault(error, kind)
        raise ConfigError(f"{path}: not {what}: {key + ': ' if key else ''}{fault}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not {what}: byte {error.start} is not UTF-8") from error


def load_template(name: str) -> PromptTemplate:
    """A shipped template (`chat`, `flat`) or a file of the user's own.

    Raises ConfigError naming the file when it cannot be read or a field is wrong.
    """
    path, template = read_prompts(name, PromptTemplate, "a prompt template")
    for index, wording in enumerate(template.wordings):
        in_rules = "{target_word}" in wording.attacker
        if not in_rules and "{target_word}" not in getattr(template.instructions, "attacker", ""):
            raise ConfigError(f"{path}: wording {index} never tells the attacker the {{target_word}}; add it")
        if "{target_word}" in wording.defender:
            raise ConfigError(f"{path}: wording {index} tells the defender the {{target_word}}; take it out")
    for text in (*template.wordings, *filter(None, [template.instructions])):
        check_marks(path, f"{text.attacker} {text.defender}", [*MARKS, GUESSES.strip("{}")])
    if template.speakers.keys() != set(Role):
        raise ConfigError(f"{path}: speakers: give a name to the attacker and to the defender")
    check_line(path, "line", template.line)
    if template.style == "lines" and not template.line.endswith(" {text}"):
        raise ConfigError(f"{path}: with `style: lines`, `line` ends with ' {{text}}'")
    if template.style != "flat" and template.instructions is not None:
        raise ConfigError(f"{path}: instructions are for `style: flat`: in `{template.style}` nobody would read them")
    if template.instructions is not None and "{target_word}" in template.instructions.defender:
        raise ConfigError(f"{path}: the defender's instruction holds the {{target_word}}; take it out")
    return template


def check_marks(path: Path, text: str, known: Iterable[str]) -> None:
    """Raises ConfigError for a misspelt mark, which players would read as it is. Other braces are the user's own, such
    as `{guess}` and `{your_word}`."""
    for name in re.findall(r"\{(\w+)\}", text):
        if name not in known and (near := nearest(name, known, cutoff=0.85)):
            raise ConfigError(f"{path}: {{{name}}} is no mark, so players would read it as it is; write {{{near}}}")


def check_line(path: Path, key: str, line: str) -> None:
    """Raises ConfigError for the line of a turn that cannot be filled, or has no place for what was said."""
    try:
        filled_line = line.format(speaker="", text=_SAID)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: {key}: {line!r} has another mark than {{speaker}} and {{text}}") from error
    if _SAID not in filled_line:
        raise ConfigError(f"{path}: {key}: {line!r} has no {{text}}, so nobody would read what was said")


CLAIMS = "I know the word"  # every referee takes a reply with this text for a claim


def check_guesses(prompts: str, words: Iterable[str], rules: str) -> None:
    """Refuses a prompt file (as `load_template`) whose claim is no guess to the referee, or that tells the defender no
    claim, and a word that cannot be guessed by naming it. The referees read English. Raises ConfigError."""
    template = load_template(prompts)
    told = f"prompts: {find_config(prompts, 'prompts')}"

    def fault(word: str) -> str | None:
        verdict = judge_turn(template.claim.replace("{word}", word), 1, word, rules)
        if verdict is None:
            return "it is no guess"
        return None if verdict.outcome is Outcome.DEFENDER_WINS else verdict.reason

    remedy = f'write "{CLAIMS}! It is `X`!", whatever the language of the rest'
    if fault("river"):
        raise ConfigError(
            f"{told}: the claim {template.claim!r} is no guess to the {rules} referee, which reads English, so no "
            f"defender could win; {remedy}, with {{word}} for X"
        )
    for index, wording in enumerate(template.wordings):
        text = f"{wording.defender} {template.instruction(Role.DEFENDER, '', 1)}"
        is_told = f"{CLAIMS}! It".casefold() in one_line(text).casefold() if rules == "published" else says_claim(text)
        if not is_told:
            raise ConfigError(
                f"{told}: wording {index} tells the defender no claim that the {rules} referee accepts (it reads "
                f"English), so it could not win; {remedy}"
            )
    if rules == "published":
        return  # its pattern of a guess ends with the word, whatever the word is; to judge 50,000 takes a minute
    for word in words:
        if reason := fault(word):
            raise ConfigError(
                f"{told}: a defender that names {word!r} with the claim {template.claim!r} would not win: {reason}; "
                "remove the word, or change the claim"
            )


def untold_guesses(prompts: str, max_guesses: int) -> str | None:
    """A warning of a prompt file (as `load_template`) whose rules do not say how often the defender may guess, in a
    game in which that is more than once."""
    if max_guesses == 1 or load_template(prompts).tells_guesses:
        return None
    return (
        f"prompts: {find_config(prompts, 'prompts')}: the defender's rules do not have {GUESSES}, so they say nothing "
        f"of game.max_guesses: {max_guesses}, or something else; copy the file and write {GUESSES} there"
    )


@lru_cache(maxsize=1024)  # of a whole page of rules, at each turn of a game
def filled(text: str, target_word: str | None, max_turns: int) -> str:
    """A text of a prompt file with these values in place of its braces."""
    text = text.replace("{max_turns}", str(max_turns))
    return text if target_word is None else text.replace("{target_word}", target_word)
