"""The rooms of a floor hold: imports run downwards in the picture below, and a folder says what it is for.

`make picture` prints the imports between rooms as they are.
"""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.modules_page import COMMAND, page

ROOT = Path(__file__).resolve().parents[3]
# A room imports only from rooms on lines below its own. Files that lie on a floor itself are rooms of their own.
PICTURE = {
    "cluster": """
                            cli
                            commands  guarded
                            serve
                            console
                       launch  gpu_check
                            run
                            schedules
                            fleet
                            rollout
              learning      supervision      buffer
                      checks        monitor
                 planning      tracking
                            runtime
                            types
                            handles
    """,
    "spag_ray": """
                            __main__
                    judge  rewards  families
                            results
                            training_data
                            episodes
                            games
                            game
                            config
                            channels
                         host  weights
                    stages  tokens  plain_yaml
                            errors
                            __init__
    """,
}
LEVELS = {
    floor: {room: -line for line, row in enumerate(picture.split("\n")) for room in row.split()}
    for floor, picture in PICTURE.items()
}
HANDS_OVER = "spag_ray/__main__.py"  # to the command line, a floor above
FILES = sorted(path for floor in LEVELS for path in (ROOT / floor).rglob("*.py"))


def room_of(module: str) -> tuple[str, str]:
    """(floor, room): `cluster.run.training` -> ("cluster", "run")."""
    floor, *rest = module.split(".")
    return floor, rest[0] if rest else "__init__"


def imported(source: str, floors: frozenset[str] | set[str] = frozenset(LEVELS)) -> set[str]:
    """Modules of these floors that a file imports, anywhere in it, under TYPE_CHECKING too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            inside = "." in node.module or node.module not in floors
            found |= {node.module} if inside else {f"{node.module}.{alias.name}" for alias in node.names}
    return {module for module in found if module.split(".")[0] in floors and not module.endswith(".__version__")}


def arrows(file: str, source: str) -> list[tuple[str, str]]:
    """(room, room that it imports) of a file, on its own floor."""
    floor, room = room_of(file.removesuffix(".py").replace("/", "."))
    return [(room, to) for on, to in map(room_of, imported(source)) if on == floor and to != room]


def violations(file: str, source: str) -> list[str]:
    floor = file.split("/")[0]
    levels = LEVELS[floor]
    unknown = [f"{file}: no room {room} in the picture" for pair in arrows(file, source) for room in pair]
    found = [line for line in unknown if line.split()[3] not in levels]
    for room, to in arrows(file, source):
        if room in levels and to in levels and levels[to] >= levels[room]:
            found.append(f"{file} imports from {to}/, which is not below {room}/")
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_imports_between_rooms_run_downwards(path: Path) -> None:
    file = path.relative_to(ROOT).as_posix()
    assert file == HANDS_OVER or violations(file, path.read_text(encoding="utf-8")) == []


def test_an_upward_import_is_found() -> None:
    upward = "def f():\n    from cluster.run.run import Run\n"
    assert violations("cluster/schedules/x.py", upward)
    assert violations("cluster/run.py", "import cluster.cli")
    assert violations("cluster/learning/x.py", "from cluster.buffer.stream import STAGE"), "beside it"
    assert violations("cluster/attic/x.py", "import cluster.types"), "a room that the picture does not have"
    assert not violations("cluster/schedules/x.py", "from cluster.rollout.arenas import Arenas")
    assert violations("spag_ray/game/x.py", "from spag_ray import stages, results")


def test_files_of_a_room_do_not_import_each_other_in_circles() -> None:
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    graph = {name: imported(path.read_text(encoding="utf-8")) & modules.keys() for name, path in modules.items()}
    done: set[str] = set()

    def walk(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name] - {name}):
                walk(other, (*way, name))
            done.add(name)

    for name in sorted(graph):
        walk(name, ())


def test_a_folder_says_in_a_line_what_it_is_for() -> None:
    rooms = {path.parent for floor in (*LEVELS, "actors", "learners") for path in (ROOT / floor).rglob("*.py")}
    for folder in rooms:
        first = (folder / "__init__.py").read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith('"""'), folder
        assert len(first) > 20, folder


def test_the_page_of_modules_is_made_from_their_docstrings() -> None:
    assert (ROOT / "docs" / "modules.md").read_text(encoding="utf-8") == page(), COMMAND


def test_print_the_imports_between_rooms() -> None:
    lines = []
    for floor, levels in LEVELS.items():
        count: dict[tuple[str, str], int] = defaultdict(int)
        for path in (ROOT / floor).rglob("*.py"):
            for arrow in arrows(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")):
                count[arrow] += 1
        for room in sorted(levels, key=lambda room: -levels[room]):
            below = {to: number for (source, to), number in count.items() if source == room}
            shown = ", ".join(f"{to} {below[to]}" for to in sorted(below, key=lambda to: -levels[to]))
            lines.append(f"{floor + '/' + room:28} -> {shown or '-'}")
    assert len(lines) == sum(map(len, LEVELS.values()))
    print("\n" + "\n".join(lines))
