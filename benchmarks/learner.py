"""The learner against the published way of training, on one machine, in one run.

    python -m benchmarks.learner [--games 32] [--repeats 2]          about 15 minutes on 2 cores
    python -m benchmarks.learner --listening [--tied 0.25]           what listening adds to the learner's time

Both train SmolLM2-135M in bfloat16 on the same five-turn games with the same loss (the published offline policy
optimisation) and the same token ids:

    baseline   one padded sequence per winner's turn, two in a batch, every logit, a second model for the reference
    ours       learners.Learner: one scoring pass, token trees, DeepSpeed ZeRO-1

Time runs from the samples to the last weight update, including old and reference log-probabilities. Ours trains on all
games in steps of 16; the baseline only on the first 16, because its cost per game does not depend on their number. The
last line is JSON: flat_speedup, chat_speedup, gradient_cosine, busy_share and the values they are computed from.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from actors.models import BUILT_IN, load_tokenizer, resolve_model
from learners.attention import TREE
from learners.engine import World
from learners.forward import token_logprobs
from learners.head import TargetHead
from learners.learner import Learner
from learners.model_folder import load_model
from learners.packing import pack
from learners.published_losses import IGNORED_LABEL, published_offline_po_loss, published_offline_po_terms
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import LearnerConfig
from spag_ray.game.decks import load_deck
from spag_ray.game.prompt_file import Wording, load_template
from spag_ray.game.prompts import make_renderer
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn
from spag_ray.training_data.listened_turns import count_leading, spread
from spag_ray.training_data.rewards import decayed_shares
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec

# As long as the published prompt (about 300 tokens); the shipped prompts are a third of it.
RULES = """This is Adversarial Taboo, a game for two players who talk in turn: an attacker and a defender.
Before the game begins the attacker is given a target word in secret, and the defender does not know it. The attacker
wants to bring the defender to say the target word without noticing that it is the one. For this the attacker may talk
about anything that has to do with the word, ask questions, tell a story or change the topic, but may never use the
word itself, nor a form of it. The defender wants to find out which word it is, and at the same time takes
care not to say it by chance in one of the answers. When the defender is sure about the word, there is one guess, which
has to be made in exactly these words: "I know the word! It is `target word`!", with the guessed word in the place of
the last two. If the guess is right, the defender wins the game at once; if it is wrong, the attacker wins it. If the
defender says the target word in any other sentence, the attacker wins as well. If nobody has won after {max_turns}
turns of each player, the game ends in a tie. Each turn is
an answer to what the other player said last, one or two sentences long. You play as the {role}. Try to win the game."""
NUM_TURNS = 5
KL_COEFF, SFT_COEFF, CLIP_RANGE, LEARNING_RATE = 0.2, 0.5, 0.2, 2e-6
LISTENING_COEFF = 0.5
GAMES_PER_STEP = 16
LINEAR_SIZES = (1, 4, 16, 64)

ATTACKER_LINES = (
    "It makes me think of {0}, and now and then of {1} as well.",
    "You often find it together with {0}, or somewhere near {1}.",
    "Many people connect it with {0}; what would you say goes with that?",
    "I was talking about {0} the other day. What comes to your mind?",
    "There is something of {0} in it, if you look at it from the side of {1}.",
)
DEFENDER_LINES = (
    "Interesting, that could be many things. Where would I see {0} in my day?",
    "I am not sure yet, but {0} reminds me of a place that I know well.",
    "Let me think about {0} for a while. Is there another hint you can give me?",
    "People use {0} for a lot of things, so I would like to hear a little more.",
    "That sounds like something old, or like something that has to do with {0}.",
)


@dataclass(frozen=True)
class Timing:
    seconds: float
    num_tokens: int
    compute_s: float


def games_of(style: str, num_games: int, model: str, deciding: bool = False) -> list[GameSample]:
    """Dialogues of five turns per seat in the shipped styles, with longer rules. The seats win alternately. Trained are
    the winner's turns, and with `deciding` the last turn of a defender that lost. Listening covers all turns of the
    defender.
    """
    rules = RULES.replace("\n", " ")
    attacker = rules.replace("{role}", "attacker")
    if style == "chat":
        attacker += ' The target word is "{target_word}".'
    wording = Wording(attacker=attacker, defender=rules.replace("{role}", "defender"))
    template = load_template(style).model_copy(update={"wordings": (wording,)})
    renderer = make_renderer(template, load_tokenizer(model), NUM_TURNS)
    cards = [(word, card.clues) for word, card in load_deck("everyday").items() if len(card.clues) >= 3]
    rng = random.Random(0)
    games = []
    for number in range(num_games):
        word, clues = cards[rng.randrange(len(cards))]
        winner = (Role.ATTACKER, Role.DEFENDER)[number % 2]
        turns: list[Turn] = []
        for index in range(2 * NUM_TURNS):
            role = (Role.ATTACKER, Role.DEFENDER)[index % 2]
            line = rng.choice(ATTACKER_LINES if role is Role.ATTACKER else DEFENDER_LINES)
            said = renderer.reply_ids(line.format(*rng.sample(clues, 2)))
            text = renderer.text_of(said)
            turns.append(Turn(role, text, renderer.prompt(turns, role, word), said, (0.0,) * len(said), "benchmark"))
        claim = renderer.claim(word)
        listening = tuple(
            Sample(turn.prompt_ids + claim.opening_ids, claim.word_ids, 1.0)
            for turn in turns
            if turn.role is Role.DEFENDER
        )
        won = [turn for turn in turns if turn.role is winner]
        shares = decayed_shares(len(won), 0.8)
        samples = tuple(Sample(turn.prompt_ids, turn.token_ids, share) for turn, share in zip(won, shares, strict=True))
        if deciding and winner is Role.ATTACKER:
            samples += (Sample(turns[-1].prompt_ids, turns[-1].token_ids, -1.0),)
        games.append(GameSample(f"{style}/{number}", winner, 1.0, samples, listening))
    return games


def without_listening(games: Sequence[GameSample]) -> list[GameSample]:
    return [replace(game, listening=()) for game in games]


def padded_batches(games: Sequence[GameSample], size: int = 2) -> Iterator[dict[str, Tensor]]:
    """Batches of the published trainer: rows in the order of the games, padded to the longest of the batch."""
    rows = [(turn, game.weight) for game in games for turn in game.turns]
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        longest = max(turn.num_tokens for turn, _ in some)
        token_ids = torch.zeros(len(some), longest, dtype=torch.int64)
        labels = torch.full((len(some), longest), IGNORED_LABEL)
        mask = torch.zeros(len(some), longest, dtype=torch.int64)
        for row, (turn, _) in enumerate(some):
            ids = torch.tensor([*turn.prompt_ids, *turn.target_ids])
            token_ids[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
            labels[row, len(turn.prompt_ids) : len(ids)] = torch.tensor(turn.target_ids)
        yield {
            "token_ids": token_ids,
            "labels": labels,
            "mask": mask,
            "rewards": torch.tensor([turn.advantage for turn, _ in some]),
            "weights": torch.tensor([weight for _, weight in some]),
        }


class Baseline:
    """The published way of training, in a straightforward implementation."""

    def __init__(self, model: str, dtype: torch.dtype = torch.bfloat16) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, local_files_only=True)
        self.reference = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, local_files_only=True).eval()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)

    def gradients(self, games: Sequence[GameSample]) -> int:
        """Adds the gradient of the mean loss over all winner's turns; returns the tokens it computed."""
        num_turns = sum(len(game.turns) for game in games)
        num_tokens = 0
        for batch in padded_batches(games):
            inputs = {"input_ids": batch["token_ids"], "attention_mask": batch["mask"], "use_cache": False}
            with torch.no_grad():
                reference_logits = self.reference(**inputs).logits
            logits = self.model(**inputs).logits
            loss = published_offline_po_loss(
                logits,
                reference_logits,
                batch["labels"],
                batch["rewards"],
                batch["weights"],
                torch.zeros_like(batch["weights"]),
                KL_COEFF,
                SFT_COEFF,
                CLIP_RANGE,
            )
            (loss * len(batch["labels"]) / num_turns).backward()
            num_tokens += batch["token_ids"].numel()
        return num_tokens

    def train(self, games: Sequence[GameSample]) -> Timing:
        began = time.perf_counter()
        num_tokens = 0
        for start in range(0, len(games), GAMES_PER_STEP):
            num_tokens += self.gradients(games[start : start + GAMES_PER_STEP])
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return Timing(time.perf_counter() - began, num_tokens, 0.0)


class Ours:
    """The learner, as a run uses it."""

    def __init__(self, model: str, max_tokens: int) -> None:
        self.learner = Learner(
            model,
            LearnerConfig(max_tokens_per_microbatch=max_tokens),  # everything else has a run's defaults
            ObjectiveConfig(name="published", kl_coeff=KL_COEFF, sft_coeff=SFT_COEFF, clip_range=CLIP_RANGE),
            World(master="127.0.0.1:0"),
        )

    def scored(self, games: Sequence[GameSample]) -> list[GameSample]:
        turns = [turn for game in games for turn in game.turns]
        scores = self.learner.score(turns)
        done = iter([replace(turn, old_logprobs=scores[index]) for index, turn in enumerate(turns)])
        return [replace(game, turns=tuple(next(done) for _ in game.turns)) for game in games]

    def train(self, games: Sequence[GameSample]) -> Timing:
        began = time.perf_counter()
        compute_s = 0.0
        ready = list(games)
        if len(games) > GAMES_PER_STEP:  # in the first step the learner is its own reference
            ready[GAMES_PER_STEP:] = self.scored(games[GAMES_PER_STEP:])
            compute_s = time.perf_counter() - began
        steps = spread(ready, GAMES_PER_STEP, -(-count_leading(ready) // GAMES_PER_STEP))
        self.learner.begin_stage(StageSpec("self_play", len(steps), LEARNING_RATE, KL_COEFF, LISTENING_COEFF))
        num_tokens = 0
        for index, step in enumerate(steps):
            report = self.learner.step(Batch(tuple(step)), at_start=index == 0)
            num_tokens += report.num_unique_tokens
            compute_s += report.compute_s
        return Timing(time.perf_counter() - began, num_tokens, compute_s)


def listening_cost(ours: Ours, model: str, num_games: int, tied: float, repeats: int) -> dict[str, float]:
    """{what: learner time with listening / without}, measured alternately on the same games. A share `tied` of them are
    ties, which are trained on only by listening. Time is the process's CPU time, so other processes may use the
    machine."""
    ratios = {}
    num_won = num_games - round(num_games * tied)
    for deciding, style in itertools.product((True, False), ("chat", "flat")):
        games = games_of(style, num_games, model, deciding)
        heard = [*games[:num_won], *(replace(game, turns=(), role=None) for game in games[num_won:])]
        last = [replace(game, listening=game.listening[-1:]) for game in heard]
        kinds = {"none": without_listening(games[:num_won]), "all": heard, "last": last}
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        num_tokens = {}
        ours.train(games[:2])
        for _ in range(repeats):
            for kind, chosen in kinds.items():
                began = time.process_time()
                num_tokens[kind] = ours.train(chosen).num_tokens
                seconds[kind].append(time.process_time() - began)
        for kind in ("all", "last"):
            name = f"{style}, winners{' and mistakes' if deciding else ''}, {kind}"
            ratios[name] = round(min(seconds[kind]) / min(seconds["none"]), 3)
            tokens = num_tokens[kind] / num_tokens["none"]
            print(f"{name}: {ratios[name]}x CPU seconds, {tokens:.2f}x tokens, {seconds}", flush=True)
    return ratios


def gradient_cosine(model: str, games: Sequence[GameSample]) -> float:
    """Cosine of the gradients of both ways on a few games, in float32, over all parameters."""
    baseline = Baseline(model, torch.float32)
    baseline.gradients(games)
    theirs = torch.cat([parameter.grad.flatten() for parameter in baseline.model.parameters()])
    module: Any = load_model(model, torch.float32, TREE)
    TargetHead.install(module)
    turns = [(turn, game.weight) for game in games for turn in game.turns]
    for tree in pack([turn for turn, _ in turns], 2048):
        means = torch.stack([values.mean() for values in token_logprobs(module, tree).split(tree.lengths)])
        chosen = [turns[index] for index in tree.sample_indices]
        published_offline_po_terms(
            means,
            means.detach(),  # the reference is the model itself before its first step
            torch.tensor([turn.advantage for turn, _ in chosen]),
            torch.tensor([weight for _, weight in chosen]),
            torch.zeros(len(chosen)),
            KL_COEFF,
            SFT_COEFF,
            CLIP_RANGE,
            num_game_samples=len(turns),
        ).sum().backward()
    ours = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    return torch.nn.functional.cosine_similarity(ours.double(), theirs.double(), dim=0).item()


def linear_cost(ours: Ours, games: Sequence[GameSample], repeats: int = 3) -> dict[int, float]:
    """{n: seconds that each episode after the first adds to one step over n of them}, the best of some repeats."""
    best = {}
    for size in LINEAR_SIZES:
        ours.learner.begin_stage(StageSpec("self_play", repeats, LEARNING_RATE, KL_COEFF))
        ready = ours.scored(games[:size])
        best[size] = min(ours.learner.step(Batch(tuple(ready))).seconds for _ in range(repeats))
    first = best[LINEAR_SIZES[0]]
    return {size: round((best[size] - first) / (size - 1), 3) for size in LINEAR_SIZES[1:]}


def matmul_rate() -> float:
    """bfloat16 multiply-add FLOP/s of this machine, on the shape of the model's largest layer."""
    left, right = torch.randn(2048, 576).bfloat16(), torch.randn(576, 1536).bfloat16()
    best = float("inf")
    for _ in range(30):
        began = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - began)
    return 2 * left.shape[0] * left.shape[1] * right.shape[1] / best


def floor_seconds(module: torch.nn.Module, num_tokens: int, num_target_tokens: int, rate: float) -> float:
    """Forward and backward of the layers for each distinct token and of the head for each target token."""
    head = module.get_input_embeddings().weight.numel()  # type: ignore[operator, union-attr]
    layers = sum(parameter.numel() for parameter in module.parameters()) - head
    return 6 * (layers * num_tokens + head * num_target_tokens) / rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--skip-linear", action="store_true")
    parser.add_argument("--listening", action="store_true", help="measure only what listening costs")
    parser.add_argument("--tied", type=float, default=0.0, help="share of tied games")
    options = parser.parse_args()
    model = resolve_model(BUILT_IN)
    result: dict[str, Any] = {}

    if options.listening:
        ours = Ours(model, options.max_tokens)
        print(json.dumps(listening_cost(ours, model, options.games, options.tied, options.repeats)))
        return

    cosine = min(gradient_cosine(model, without_listening(games_of(style, 2, model))) for style in ("flat", "chat"))
    result["gradient_cosine"] = round(cosine, 7)
    print(f"gradient cosine of both ways, float32: {cosine:.7f}", flush=True)

    baseline, ours = Baseline(model), Ours(model, options.max_tokens)
    busy = []
    for style in ("flat", "chat"):
        games = without_listening(games_of(style, options.games, model))
        ratios = []
        baseline.train(games[:2]), ours.train(games[:2])
        for _ in range(options.repeats):
            theirs, mine = baseline.train(games[:GAMES_PER_STEP]), ours.train(games)
            ratios.append(theirs.seconds / GAMES_PER_STEP / (mine.seconds / len(games)))
            busy.append(mine.compute_s / mine.seconds)
            print(
                f"{style}: seconds per episode, baseline {theirs.seconds / GAMES_PER_STEP:.2f} "
                f"({theirs.num_tokens // GAMES_PER_STEP} tokens), ours {mine.seconds / len(games):.2f} "
                f"({mine.num_tokens // len(games)} tokens): {ratios[-1]:.2f}x, busy {busy[-1]:.2f}",
                flush=True,
            )
        result[f"{style}_speedup"] = round(statistics.median(ratios), 2)
        result[f"{style}_token_ratio"] = round(theirs.num_tokens * len(games) / mine.num_tokens / GAMES_PER_STEP, 2)
    result["busy_share"] = round(statistics.median(busy), 3)

    if not options.skip_linear:
        result["seconds_per_added_episode"] = linear_cost(
            ours, without_listening(games_of("chat", max(LINEAR_SIZES), model))
        )
    targets = sum(len(turn.target_ids) for game in games for turn in game.turns)
    rate = matmul_rate()
    floor = floor_seconds(baseline.model, mine.num_tokens, targets, rate)
    result["matmul_tflops"] = round(rate / 1e12, 2)
    result["chat_times_floor"] = round(mine.seconds / floor, 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
