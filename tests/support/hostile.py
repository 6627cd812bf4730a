"""An episode to damage, and values that nobody meant well with."""

from hypothesis import strategies as st

from spag_ray.episodes.episode import Episode
from spag_ray.episodes.wire import encode
from spag_ray.game.rules import EndReason, Outcome, Verdict, next_role
from spag_ray.game.turn import Turn


def example(num_turns: int = 4) -> bytes:
    turns = tuple(
        Turn(next_role(n), f"turn {n}", (1, 2, n), (4, 5), (-0.5, -0.25), "p", 1, 2, "stop", [None, -1.5][n % 2])
        for n in range(num_turns)
    )
    verdict = Verdict(Outcome.ATTACKER_WINS, EndReason.SAID_WORD, num_turns, "said it", 3, (0, 4))
    return encode(Episode("s/7", 7, "s", "river", num_turns, "strict", 1.0, turns, verdict))


numbers = st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
values = st.recursive(
    st.none() | numbers | st.text(max_size=5) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
