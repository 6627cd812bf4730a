"""Moves to try are what messages show, the last ones first, and variations."""

import random

from spag_ray.games.textarena_game import likely_moves


def test_moves_of_the_last_message_come_first_and_senders_are_no_moves() -> None:
    texts = ["[GAME] For example '[b2 b3]'.", "[Player 1] moved\n[GAME] Available: '[0]', '[4]'"]
    found = likely_moves(texts, random.Random(1))
    assert set(found[:2]) == {"[0]", "[4]"}
    assert found[2] == "[b2 b3]"


def test_variations_have_other_numbers_and_letters() -> None:
    found = likely_moves(["Say [b2 b3] or [fold]."], random.Random(0))
    assert len(found) > 20
    assert {move[0] + move[-1] for move in found} == {"[]"}
    assert "[fold]" in found


def test_the_generator_alone_makes_them_vary_and_there_may_be_none() -> None:
    assert likely_moves(["[1] [2] [3]"], random.Random(3)) == likely_moves(["[1] [2] [3]"], random.Random(3))
    assert likely_moves(["Say something."], random.Random(0)) == []
