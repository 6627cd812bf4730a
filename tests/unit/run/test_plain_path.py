"""A folder whose name is a pattern is found by libraries that glob it."""

import glob
from pathlib import Path

import pytest

from spag_ray.host.plain_path import plain_path


@pytest.mark.parametrize("name", ["x[1]", "a*b", "what?", "[", "größe [2]"])
def test_a_folder_of_any_name_is_found_by_a_glob(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "weights.pt").write_text("w")
    with plain_path(str(folder)) as path:
        (found,) = glob.glob(f"{path}/*.pt")
        assert Path(found).read_text() == "w"
        (Path(path) / "new").write_text("n")
    assert not Path(path).exists(), "the link is gone"
    assert sorted(each.name for each in folder.iterdir()) == ["new", "weights.pt"]


def test_a_plain_path_stays_as_it_is(tmp_path: Path) -> None:
    with plain_path(str(tmp_path)) as path:
        assert path == str(tmp_path)
