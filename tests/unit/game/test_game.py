"""The rules: seats, outcomes, histories; errors survive the way between processes."""

import pickle

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from spag_ray import errors
from spag_ray.errors import InputError, SpagError, reason_of
from spag_ray.game.rules import Outcome, Role, check_history, next_role


def test_seats_alternate_from_the_attacker_on() -> None:
    assert [next_role(n) for n in range(4)] == ["attacker", "defender", "attacker", "defender"]
    assert Role.ATTACKER.other is Role.DEFENDER
    assert Role.DEFENDER.other is Role.ATTACKER


@pytest.mark.parametrize(
    ("outcome", "winner", "breaker", "attacker_score"),
    [
        ("attacker wins", "attacker", None, 1.0),
        ("defender wins", "defender", None, 0.0),
        ("attacker breaks the rules", None, "attacker", 0.0),
        ("defender breaks the rules", None, "defender", 1.0),
        ("tied game", None, None, 0.5),
    ],
)
def test_an_outcome_knows_who_won_and_who_scored(
    outcome: str, winner: str | None, breaker: str | None, attacker_score: float
) -> None:
    result = Outcome(outcome)
    assert (result.winner, result.breaker, result.is_decided) == (winner, breaker, winner is not None)
    assert result.score(Role.ATTACKER) == attacker_score
    assert result.score(Role.DEFENDER) == 1.0 - attacker_score


def test_a_sound_history_passes() -> None:
    check_history([])
    check_history([{"role": "attacker", "content": ""}, {"role": "defender", "content": "Hm."}])


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ("attacker", "must be a list"),
        (None, "must be a list"),
        (["Hm."], "turn 0 must be an object"),
        ([{"role": "attacker"}], "turn 0 needs a text under 'content'"),
        ([{"role": "attacker", "content": 3}], "turn 0 needs a text"),
        ([{"role": "defender", "content": "Hm."}], "turn 0 is by 'defender'"),
        ([{"role": "attacker", "content": "a"}, {"role": "attacker", "content": "b"}], "turn 1 is by 'attacker'"),
    ],
)
def test_an_unsound_history_is_refused_and_the_turn_named(history: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_history(history)


def test_every_error_survives_pickling() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SpagError)]
    assert len(kinds) == 14
    assert {kind.__name__ for kind in kinds if kind.exit_code != 2} == {"StopRequestedError"}
    for kind in kinds:
        copy = pickle.loads(pickle.dumps(kind("what, where, remedy")))
        assert type(copy) is kind
        assert str(copy) == "what, where, remedy"
        assert copy.exit_code == kind.exit_code


def test_the_reason_of_another_librarys_error_is_one_line_without_its_links_and_tracebacks() -> None:
    class Sized(BaseModel):
        size: int

        @field_validator("size")
        @classmethod
        def _check(cls, size: int) -> int:
            raise ValueError(f"{size} is greater than\n  the limit")

    with pytest.raises(ValidationError) as caught:
        Sized(size=9)
    assert reason_of(caught.value) == "9 is greater than the limit"
    printed = f"the engine failed\n{caught.value}"
    assert "errors.pydantic.dev" in printed
    assert "errors.pydantic.dev" not in reason_of(RuntimeError(printed))
    text = 'Call failed\nTraceback (most recent call last):\n  File "x.py", line 1\n    raise x\nValueError: too\nlong'
    assert reason_of(RuntimeError(text)) == "ValueError: too; long"
    assert reason_of(OSError("no file model.safetensors\n\nlook there;\n")) == "no file model.safetensors; look there"
    assert reason_of(KeyError()) == "KeyError"
