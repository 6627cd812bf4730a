"""Hostile bytes against everything that reads bytes, under libFuzzer (atheris): `make fuzz`, or

    python tests/fuzz/fuzz_bytes.py {wire|log|json} [-max_total_time=60] [libFuzzer's other options] [CORPUS]

Whatever comes in, a reader returns or raises InputError; anything else, a second of work, or 1 GiB of memory is a
finding, and its input is left in a crash-* file.
"""

import resource
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["spag_ray", "msgpack"]):
    from spag_ray.episodes.episode import Episode
    from spag_ray.episodes.formats import holds_games, read_games, read_samples, read_sft
    from spag_ray.episodes.log import EpisodeLog, read_log
    from spag_ray.episodes.wire import decode, encode, read_head
    from spag_ray.errors import InputError
    from spag_ray.game.rules import EndReason, Outcome, Verdict, next_role
    from spag_ray.game.turn import Turn

FOLDER = Path(tempfile.mkdtemp(prefix="spag_ray-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


def example() -> bytes:
    """A record as it should be, to begin from."""
    turns = tuple(
        Turn(next_role(n), f"turn {n}", (1, 2, n), (4, 5), (-0.5, -0.25), "policy", 1, 2, "stop", [None, -1.5][n % 2])
        for n in range(4)
    )
    verdict = Verdict(Outcome.ATTACKER_WINS, EndReason.SAID_WORD, 4, "said it", 3, (0, 4))
    return encode(Episode("s/7", 7, "s", "river", 3, "strict", 1.0, turns, verdict))


def wire(data: bytes) -> None:
    try:
        head = read_head(data)
    except InputError:
        head = None
    try:
        episode = decode(data)
    except InputError:
        return
    assert decode(encode(episode)) == episode
    assert head is not None
    assert (head.number, head.num_tokens) == (episode.number, episode.num_tokens)


def log(data: bytes) -> None:
    path = FOLDER / "x.log"
    path.write_bytes(data)
    count = 0
    try:
        count = sum(1 for _ in read_log(path))
    except InputError:
        return
    writer = EpisodeLog(path)
    writer.append(example())
    writer.close()
    assert sum(1 for _ in read_log(path)) == count + 1


def json(data: bytes) -> None:
    path = FOLDER / "x.json"
    path.write_bytes(data)
    for read in (holds_games, read_games, read_samples, read_sft):
        try:
            read(path)
        except InputError:
            continue


TARGETS = {"wire": wire, "log": log, "json": json}
SEEDS = {
    "wire": [example()],
    "log": [],
    "json": [
        b'[{"history": [{"role": "attacker", "content": "a"}], "target_word": "cat", "max_turns": 2}]',
        b'{"query": "q", "target": "t", "reward": 1.0, "role": "attacker", "weight": 0.5}',
        b'[{"instruction": "a", "input": "b", "output": "c"}]',
    ],
}


def main() -> None:
    name = sys.argv.pop(1)
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    seeds = list(SEEDS[name])
    if name == "log":
        EpisodeLog(FOLDER / "seed.log").append(example(), example())
        seeds.append((FOLDER / "seed.log").read_bytes())
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    # Not libFuzzer's -rss_limit_mb: it reads the process's peak, which a process inherits from the one that starts it.
    resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
    atheris.Setup([*sys.argv, "-rss_limit_mb=0", "-timeout=10", str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
