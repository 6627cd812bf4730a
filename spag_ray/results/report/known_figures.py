"""What defenders could have known, by turn and by stage, and how often claims were right at each probability."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from spag_ray.game.rules import EndReason, GameEnd, Outcome
from spag_ray.results.could_have_known import Tenth, pooled
from spag_ray.results.report.figure import SERIES, Figure, legend_of, line, numbered
from spag_ray.results.report.markup import paragraph, table
from spag_ray.results.report.transcripts import Transcripts
from spag_ray.stages import Stage, StageKind

MOST_TURNS = 10  # columns of the table
_RIGHT = GameEnd(Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS)
_WRONG = GameEnd(Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS)
_TRAP = GameEnd(Outcome.ATTACKER_WINS, EndReason.SAID_WORD)


def known_figures(transcripts: Transcripts) -> list[Figure]:
    """The word's probability by the defender's turn, for a few stages, if defenders had several turns; and how many
    claims of all scored games were right, by that probability, if there were claims."""
    if not transcripts.known:
        return []
    tenths = pooled(transcripts.known.values())
    found = [_by_turn(transcripts)] if any(len(each.turns()) > 1 for each in transcripts.known.values()) else []
    return found + ([_calibration(tenths)] if any(tenth.claims for tenth in tenths) else [])


def _by_turn(transcripts: Transcripts) -> Figure:
    """Of stages in which the same weights played both seats; of all stages if there are none."""
    own = [stage for stage in transcripts.known if Stage.parse(stage).kind is StageKind.EVALUATION]
    shown = dict(zip(_few(own or list(transcripts.known)), SERIES, strict=False))
    data, said, numbers = [], [], []
    for stage, colour in shown.items():
        turns, name = transcripts.known[stage].turns(), Stage.parse(stage).title
        reached = [turn.number for turn in turns]
        data.append(line(reached, [100 * turn.mean_p for turn in turns], name, colour) | {"mode": "lines+markers"})
        said.append(f"{name}: " + ", ".join(f"turn {turn.number} {_percent(turn.mean_p)}" for turn in turns))
        numbers += reached
    layout = {"xaxis": numbered("the defender's turn", numbers), "yaxis": {"ticksuffix": "%", "rangemode": "tozero"}}
    title, note = "Probability of the word for the defender", "mean over the games that reached the turn"
    return Figure(
        "known-by-turn", title, "; ".join(said), data=data, layout=layout, note=note, height=260, legend=legend_of(data)
    )


def _few(stages: Sequence[str]) -> list[str]:
    """At most one stage per colour: the first, the last, and some between them.

    >>> _few(list("abcdefg"))
    ['a', 'c', 'e', 'g']
    """
    most = len(SERIES)
    if len(stages) <= most:
        return list(stages)
    return [stages[place * (len(stages) - 1) // (most - 1)] for place in range(most)]


def _calibration(tenths: Sequence[Tenth]) -> Figure:
    """Bars: the share of claims that were right. Dashed line: the share that p predicts."""
    middles = [10 * place + 5 for place in range(len(tenths))]
    shares = [None if tenth.share is None else round(100 * tenth.share, 1) for tenth in tenths]
    counts = [f"{tenth.right} of {tenth.claims}" if tenth.claims else "" for tenth in tenths]
    bars = {
        "type": "bar",
        "x": middles,
        "y": shares,
        "width": [8] * len(tenths),
        "text": [str(tenth.claims) if tenth.claims else "" for tenth in tenths],
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": counts,
        "marker": {"color": "--defender"},
        "hovertemplate": "%{customdata} claims right<extra></extra>",
    }
    expected = line([0, 100], [0, 100], "as p predicts", "--muted")
    expected["line"] |= {"dash": "dash"}
    expected["hoverinfo"] = "skip"
    del expected["hovertemplate"]
    layout = {
        "xaxis": {"title": {"text": "probability of the word at the claim"}, "ticksuffix": "%", "dtick": 20}
        | {"range": [0, 100], "showgrid": False},
        "yaxis": {"ticksuffix": "%", "range": [0, 112], "dtick": 25},
        "hovermode": "closest",
    }
    summary = "; ".join(
        f"probability {tenth.title}: {tenth.right} of {tenth.claims} claims right" for tenth in tenths if tenth.claims
    )
    legend = (("share that was right", "--defender"), ("as p predicts", "--muted"))
    title, note = "Claims that were right, by the word's probability", "number: claims"
    return Figure(
        "known-claims", title, summary, data=[bars, expected], layout=layout, note=note, height=260, legend=legend
    )


def known_tables(transcripts: Transcripts) -> Markup:
    """Each stage's guesses, traps and probabilities by turn, and how to read the charts."""
    known, counts = transcripts.known, transcripts.counts
    stages = [stage for stage in counts if stage in known or Stage.parse(stage).phase == "evaluation"]
    if not stages:
        return paragraph("No games on held-out words yet.", "missing")
    num_turns = min(max((len(each.turns()) for each in known.values()), default=0), MOST_TURNS)
    rows = []
    for stage in stages:
        ends = counts[stage].ends
        turns = {turn.number: turn for turn in known[stage].turns()} if stage in known else {}
        rows.append(
            [
                Stage.parse(stage).title,
                f"{ends[_RIGHT]} of {ends[_RIGHT] + ends[_WRONG] + transcripts.num_early[stage]}",
                f"{ends[_TRAP]} of {counts[stage].outcomes[Outcome.ATTACKER_WINS]}",
                *(_percent(turns[number].mean_p) if number in turns else "-" for number in range(1, num_turns + 1)),
            ]
        )
    headings = ("attacker v defender", "right guesses", "traps", *(f"turn {n}" for n in range(1, num_turns + 1)))
    text = paragraph(
        "Right guesses: of all guesses. Traps: attackers' wins in which the defender said the word without noticing. "
        "Turn 1, 2, ...: probability that a guess of the defender at this turn would have been right; mean over games.",
        "note",
    )
    if any(tenth.claims for tenth in pooled(known.values())):
        text += paragraph(
            "How to read the bars: of claims at a probability of 30 to 40 %, about a third should be right. If bars "
            "are below the dashed line, claims were right less often than the probabilities predict. A few claims "
            "prove nothing.",
            "note",
        )
    return table("Held-out words: guesses, traps, and what could have been known", headings, rows) + text


def _percent(share: float) -> str:
    """A percentage with about two significant digits.

    >>> _percent(0.344), _percent(0.0123), _percent(0.00001)
    ('34%', '1.2%', '<0.1%')
    """
    value = 100 * share
    if value < 0.1:
        return "<0.1%" if value > 0 else "0%"
    return f"{value:.0f}%" if value >= 10 else f"{value:.1f}%"
