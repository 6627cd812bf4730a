"""The small model of a game's words, and the tables of its runs (benchmarks/small_model.py, benchmarks/leduc.py)."""

from pathlib import Path

from actors.models import load_tokenizer
from benchmarks import leduc, small_model
from spag_ray.config.loading import load_config
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn
from spag_ray.games.registry import game_of, renderer_of


def test_every_decision_of_its_game_has_tokens_and_words_of_replies_are_few(tmp_path: Path) -> None:
    config = load_config("kuhn")
    loss = small_model.make("kuhn", tmp_path / "small", width=64, layers=2, steps=30, seed=1)
    assert loss < 4, "it has begun to read: a guess among 350 tokens costs 5.9 nats"
    tokenizer = load_tokenizer(str(tmp_path / "small"))
    game = game_of(config)
    renderer = renderer_of(config, tokenizer, game)
    for scenario in game.scenarios():
        prompt = renderer.prompt([], Role.ATTACKER, scenario)
        text = tokenizer.decode(prompt)
        assert "Kuhn poker" in text
        assert len(prompt) < len(text) / 2, "words are tokens"
        reply = renderer.reply_ids("check")
        turn = Turn(Role.ATTACKER, "check", tuple(prompt), tuple(reply), (-0.1,) * len(reply), "x")
        assert len(reply) <= 3
        assert len(renderer.prompt([turn], Role.DEFENDER, scenario)) > 0


def test_other_seeds_give_other_weights_and_the_same_words(tmp_path: Path) -> None:
    for seed in (1, 2):
        small_model.make("kuhn", tmp_path / str(seed), width=64, layers=2, steps=2, seed=seed)
    tokenizers, weights = (
        [(tmp_path / seed / name).read_bytes() for seed in "12"] for name in ("tokenizer.json", "model.safetensors")
    )
    assert tokenizers[0] == tokenizers[1]
    assert weights[0] != weights[1]


def test_a_record_is_a_table() -> None:
    def figures(value: float) -> dict[str, float]:
        return {"nash_conv": value, "legal_nash_conv": value - 0.1, "illegal": 0.01}

    stages = {"base": figures(26), "imitated": figures(5), "spag-1": figures(3), "spag-2": figures(1.5)}
    record = {"seed": 3, "uniform": figures(4.5), "stages": stages, "average": figures(2), "games": 1920, "seconds": 90}
    text = "\n".join(leduc.tables([record, record | {"stages": stages | {"spag-2": figures(1.8)}}]))
    assert "| 3 | spag-2 | 1.500 | 0.33 | 1.400 | 1.0 % | 1,920 | 1.5 |" in text
    assert "mean 0.37, largest 0.40; at most 0.33 in 1 of 2 seeds" in text
