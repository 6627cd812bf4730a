"""The report's page as a test reads it."""

import base64
import gzip
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from spag_ray.results.report.page import write_report


class Page(HTMLParser):
    """What a browser makes of the source: elements that are scripts, data elements by id, all other text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.data: dict[str, str] = {}
        self.text = ""
        self.policy = ""
        self.links: list[str] = []
        self._into = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        if tag == "script":
            self._into = found.get("id") or "script"
            if "type" not in found:
                self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._into = ""

    def handle_data(self, data: str) -> None:
        if self._into == "script":
            self.scripts[-1] += data
        elif self._into:
            self.data[self._into] = self.data.get(self._into, "") + data
        else:
            self.text += data

    def unpacked(self, name: str) -> Any:
        return json.loads(gzip.decompress(base64.b64decode(self.data[name])))

    def games(self) -> list[dict[str, Any]]:
        names = sorted((name for name in self.data if name.startswith("block-")), key=lambda name: int(name[6:]))
        return [game for name in names for game in self.unpacked(name)]


def page_of(folder: Path, **options: Any) -> Page:
    report = write_report(folder, folder / "report.html", **options)
    assert report.num_bytes == report.path.stat().st_size
    return Page(report.path.read_text(encoding="utf-8"))
