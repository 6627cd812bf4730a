"""What is no model is refused with what it lacks; converting the demonstration model is in integration/."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.models import resolve_model
from spag_ray.errors import ModelError


def test_a_folder_that_is_no_model_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelError, match="no such model folder"):
        resolve_model(str(tmp_path / "absent"))
