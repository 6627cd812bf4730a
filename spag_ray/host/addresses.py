"""Addresses of clusters and servers: which form they have, and which are asked without a proxy."""

from __future__ import annotations

import ipaddress
import os
import re
from enum import Enum
from urllib.parse import urlsplit

from spag_ray.errors import ConfigError

_EXPLAINED = (
    "a cluster has three addresses: http://HEAD:8265 (jobs: submit, runs, stop), ray://HEAD:10001 (sessions: attach, "
    "watch, runs, stop) and HEAD:6379 (Ray itself: doctor --address, cluster.address)"
)
_HOST = r"(?:\[[0-9a-fA-F:.%]+\]|[\w.-]+)"
_PLACE = re.compile(rf"(?:(?:ray|https?):/*|[a-zA-Z]+://)?({_HOST})?(?::(\d+))?(?:/.*)?")


class Form(Enum):
    """An address of a cluster: what it begins with, and its usual port."""

    JOBS = "http://", "8265"
    SESSION = "ray://", "10001"
    CLUSTER = "", "6379"

    def fits(self, address: str) -> bool:
        if self is Form.JOBS:
            return address.startswith(("http://", "https://")) and _has_host(address)
        place = re.fullmatch(rf"{self.value[0]}{_HOST}:(\d+)", address)
        return (place is not None and 0 < int(place[1]) < 2**16) or (self is Form.CLUSTER and address == "auto")


def check_address(address: str, *forms: Form, where: str = "") -> Form:
    """The form of the address. Raises ConfigError if it has none of these forms; the message explains all. `where`: the
    option that it was given to."""
    if fault := address_fault(address, *forms):
        raise ConfigError(f"{where} {address!r}: {fault}".lstrip())
    return next(form for form in forms if form.fits(address))


def address_fault(address: str, *forms: Form) -> str | None:
    """What to write instead; None if the address has one of these forms."""
    if any(form.fits(address) for form in forms):
        return None
    place = _PLACE.fullmatch(address)
    host = (place and place[1]) or "HEAD"
    own_port = place[2] if place and place[1] and "//" not in address else None
    proposed = " or ".join(f"{begin}{host}:{own_port or port}" for begin, port in (form.value for form in forms))
    return f"write {proposed}; {_EXPLAINED}"


def looks_like_address(text: str) -> bool:
    """Whether a text that may be a path is meant as an address.

    >>> looks_like_address("head:10001"), looks_like_address("ray://head"), looks_like_address("runs/one")
    (True, True, False)
    """
    return "://" in text or re.fullmatch(rf"{_HOST}:\d+", text) is not None


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ask_directly(url: str) -> None:
    """If the server is on this machine, HTTP clients of this process and of its children ask no proxy for it. Many
    read only one of the two variables, the lower-case one if both are set."""
    host = urlsplit(url).hostname or ""
    if not (is_loopback(host) or host in ("0.0.0.0", "::")):  # the latter two are this machine, too
        return
    for name in ("no_proxy", "NO_PROXY"):
        others = os.environ.get(name) or os.environ.get(name.swapcase()) or ""
        if others.strip() == "*":  # asks no proxy for anything
            os.environ[name] = "*"
        elif host not in others.split(","):
            os.environ[name] = f"{others},{host}".lstrip(",")


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:  # of a port that is no number, or too large
        return False
