"""What each rank gets of a batch: every sample once, and the counts of the whole."""

import pickle
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.errors import LearnerError
from spag_ray.game.rules import Role
from spag_ray.training_data.samples import Claiming, GameSample, Sample
from spag_ray.training_data.shares import Batch, BatchCounts, check_turns, shares_of
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.training_data.terms import KINDS, TERMS, Rows
from tests.support.losses import Trained

SPEC = StageSpec("self_play", 1, 0.0, kl_coeff=0.2, listening_coeff=0.4, temperature=1.7)


def turn(number: int, length: int = 4, role: Role | None = None) -> Sample:
    """Token ids that no other turn has."""
    draw = random.Random(number)
    ids = tuple(draw.randrange(1000, 40000) for _ in range(40 + length))
    return Sample(ids[:40], ids[40:], 0.5, (-1.0,) * length, (-1.5,) * length, role=role)


def game(number: int) -> GameSample:
    role = Role.ATTACKER if number % 3 else Role.DEFENDER
    turns = tuple(turn(100 * number + index, 3 + index, role) for index in range(1 + number % 4))
    heard = tuple(turn(100 * number + 50 + index, 2) for index in range(number % 2))
    unsaid = ((turn(100 * number + 80, 1, Role.ATTACKER),),) if number % 5 == 0 else ()
    return GameSample(str(number), role, 0.5 + number / 8, turns, heard, unsaid)


def batch_of(num_games: int) -> Batch:
    return Batch(tuple(game(number) for number in range(num_games)), (turn(-1), turn(-2), turn(-3)))


def test_ranks_share_the_games_completely_and_evenly() -> None:
    sizes = [50, 10, 40, 30, 20, 35, 5]
    shares = shares_of(sizes, 3)
    assert sorted(index for share in shares for index in share) == list(range(7))
    loads = [sum(sizes[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes) / 2


def test_a_share_is_what_a_rank_took_when_it_planned_for_itself() -> None:
    """The plan of earlier versions, which training results depend on: the rank with the least so far, the lowest of
    equals."""
    draw = random.Random(0)
    for num_ranks in (1, 2, 7, 16):
        sizes = [draw.randrange(1, 9) for _ in range(200)]
        loads = [0] * num_ranks
        expected: list[list[int]] = [[] for _ in range(num_ranks)]
        for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
            rank = loads.index(min(loads))
            loads[rank] += sizes[index]
            expected[rank].append(index)
        assert shares_of(sizes, num_ranks) == [sorted(share) for share in expected]


def test_every_sample_is_sent_to_one_rank_only() -> None:
    batch = batch_of(64)
    shares = batch.shares(16)
    sent = [pickle.dumps(share) for share in shares]
    assert sum(map(len, sent)) <= 1.2 * len(pickle.dumps(batch))
    arrived = [pickle.loads(data) for data in sent]
    assert arrived == shares
    for kept in ("games", "sft"):
        got = [sample for share in arrived for sample in getattr(share, kept)]
        assert len(got) == len(getattr(batch, kept))
        assert all(sample in got for sample in getattr(batch, kept))


def test_the_loss_of_the_shares_adds_up_to_that_of_the_batch() -> None:
    objective = ObjectiveConfig(unsaid_coeff=0.3)
    batch = batch_of(8)

    def loss(part: Batch) -> float:
        logprobs = [torch.full((len(sample.target_ids),), -0.7, dtype=torch.float64) for sample in part.samples]
        return Trained.of(part, objective, SPEC, logprobs).loss.item() if logprobs else 0.0

    shares = batch.shares(5)
    assert sum(map(loss, shares)) == pytest.approx(loss(batch), rel=1e-12)
    assert all(share.counts == batch.counts for share in shares)


def test_a_rank_without_samples_gets_a_stand_in_and_an_empty_batch_has_none() -> None:
    batch = replace(batch_of(2), sft=())
    shares = batch.shares(4)
    stand_ins = [share.stand_in for share in shares if not share.samples]
    assert stand_ins == [batch.games[0].turns[0]] * 2
    assert all(share.stand_in is None for share in shares if share.samples)
    assert Batch(()).shares(2)[1].stand_in is None


def test_a_batch_counts_each_kind_of_game_and_each_turn_of_a_seat() -> None:
    """Two games that the attacker won, one of them for claiming; then a game and a tie that are only listened to."""
    word, claims = Sample((1,), (2,), 1.0), Sample((1,), (2, 3), 1.0, claiming=Claiming(1, 1, 0.5))
    unsaid = tuple((turn(number, 1, role),) * 2 for number, role in enumerate((*Role, Role.ATTACKER)))
    games = (
        GameSample("a", Role.ATTACKER, 0.5, (turn(1), turn(2)), (word,), unsaid),
        GameSample("b", Role.ATTACKER, 1.5, (turn(3),), (claims,) * 2),
        GameSample("c", Role.DEFENDER, 7.0, (), (word,)),
        GameSample("d", None, 1.0, (), (claims,)),
    )
    batch = Batch(games, (turn(4),))
    assert [each.num_tokens for each in games] == [2 * 44 + 2, 44 + 2 * 3, 2, 3], "words that are unsaid add none"
    assert batch.counts == BatchCounts(
        num_turns=3,
        num_tokens=3 * 4,
        max_tokens=4,
        advantage_mean=0.5,
        advantage_std=0.0,
        advantage_zeros=0.0,
        num_rows=1,
        num_decided=2,
        num_listened=2,
        num_heard=4,
        num_unsaid={Role.ATTACKER: 1, Role.DEFENDER: 1},
        role_weights={Role.ATTACKER: 1.0, Role.DEFENDER: 0.0},
    )
    objective = ObjectiveConfig(listening_coeff=0.4, claiming_coeff=0.6, unsaid_coeff=0.3, sft_coeff=0.5)
    rows = Rows.of(batch, objective, SPEC)
    assert rows.samples == batch.samples
    found = [
        (KINDS[kind], temperature, {term: weight for term, weight in zip(TERMS, weights, strict=True) if weight})
        for kind, temperature, weights in zip(rows.kinds, rows.temperatures, rows.weights.T, strict=True)
    ]
    assert found == [
        *[("turn", 1.7, {"policy": 0.5 / 2, "kl": 0.5 / 2 * 0.2 / 2})] * 2,
        ("turn", 1.7, {"policy": 1.5 / 2, "kl": 1.5 / 2 * 0.2}),
        ("listening", 1.0, {"listening": 0.4 / 2}),
        *[("claiming", 0.5, {"claiming": 0.6 / (4 * 2)})] * 2,
        ("listening", 1.0, {"listening": 0.4 / 2}),
        ("claiming", 0.5, {"claiming": 0.6 / 4}),
        *[("unsaid", 1.0, {"unsaid": 0.3 / 2})] * 2,
        *[("unsaid", 1.0, {"unsaid": 0.3})] * 2,
        *[("unsaid", 1.0, {"unsaid": 0.3 / 2})] * 2,
        ("sft", 1.0, {"sft": 0.5}),
    ]


def test_tokens_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(LearnerError, match="sample 1 has token id 900, the model's vocabulary has 64"):
        check_turns([Sample((1,), (2,), 1.0), Sample((1, 2), (900,), 1.0)], vocabulary_size=64)
    check_turns([Sample((0, 63), (63, 0), 1.0), Sample((), (1,), 1.0)], vocabulary_size=64)
    for prompt_ids, target_ids, wrong in (((64,), (1,), 64), ((1,), (64,), 64), ((-1,), (1,), -1), ((1,), (-2,), -2)):
        with pytest.raises(LearnerError, match=f"sample 0 has token id {wrong}, "):
            check_turns([Sample(prompt_ids, target_ids, 1.0)], vocabulary_size=64)


def test_planning_needs_no_torch() -> None:
    code = "import sys, spag_ray.training_data.shares, cluster.learning.learner_group; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
