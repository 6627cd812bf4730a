"""Games to train on in benchmarks: dialogues of five turns per seat."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from actors.models import load_tokenizer
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.decks import load_deck
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import Wording, load_template
from spag_ray.training_data.rewards import decayed_shares
from spag_ray.training_data.samples import GameSample, Sample

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
    renderer = taboo_renderer(template, load_tokenizer(model), NUM_TURNS)
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
            turns.append(Turn.unsampled(role, text, renderer.prompt(turns, role, word), said, "benchmark"))
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
