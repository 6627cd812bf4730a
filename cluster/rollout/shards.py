"""Which engines of a pool play for which arena.

Engines lie on a line in the order in which they joined, and arenas cut it into pieces of the same length:

    3 engines    |  0  |  1  |  2  |     arena 0: engine 0 and half of engine 1
    2 arenas     |   0    |   1    |     arena 1: half of engine 1, and engine 2

So every arena has an engine, every engine gets the same number of games, and with many engines nearly each belongs to
one arena: its turns travel together. An engine that joins or leaves moves each cut by less than one engine.
"""

from __future__ import annotations


def shares(arena: int, num_arenas: int, num_engines: int) -> dict[int, float]:
    """{engine: the part of it that plays for `arena`, above 0 and at most 1}

    >>> shares(0, 2, 3), shares(1, 2, 3)
    ({0: 1.0, 1: 0.5}, {1: 0.5, 2: 1.0})
    >>> shares(2, 4, 1)
    {0: 0.25}
    """
    begin, end = arena * num_engines, (arena + 1) * num_engines  # on a line where an engine is `num_arenas` long
    engines = range(begin // num_arenas, -(-end // num_arenas))
    return {
        engine: (min(end, (engine + 1) * num_arenas) - max(begin, engine * num_arenas)) / num_arenas
        for engine in engines
    }
