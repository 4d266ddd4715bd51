"""Hosts in network namespaces, joined by one bridge, so that tests can cut real links. Needs root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """N namespaces with one address each, `10.99.0.(i+1)`; a link that is down is a cut cable."""

    def __init__(self, count: int) -> None:
        self.count = count

    def name(self, i: int) -> str:
        return f"rm-host{i}"

    def address(self, i: int) -> str:
        return f"10.99.0.{i + 1}"

    def run_in(self, i: int) -> list[str]:
        """Return the command that starts another one on host i."""
        return ["ip", "netns", "exec", self.name(i)]

    def group(self, *parts: set[int]) -> None:
        """Put the hosts of each part onto a bridge of their own: parts do not reach each other."""
        for bridge, part in enumerate(parts):
            for i in part:
                ip("link", "set", f"rm-veth{i}", "master", f"rm-br{bridge}")


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Make hosts on one bridge, and a second bridge to put some of them on."""
    made = Hosts(count)
    try:
        for bridge in ("rm-br0", "rm-br1"):
            ip("link", "add", bridge, "type", "bridge")
            ip("link", "set", bridge, "up")
        for i in range(count):
            ip("netns", "add", made.name(i))
            ip("link", "add", f"rm-veth{i}", "type", "veth", "peer", "name", "eth0", "netns", made.name(i))
            ip("link", "set", f"rm-veth{i}", "master", "rm-br0", "up")
            ip("-n", made.name(i), "addr", "add", f"{made.address(i)}/24", "dev", "eth0")
            ip("-n", made.name(i), "link", "set", "eth0", "up")
            ip("-n", made.name(i), "link", "set", "lo", "up")
        yield made
    finally:
        for i in range(count):
            subprocess.run(["ip", "netns", "del", made.name(i)], check=False, capture_output=True)
        for link in ("rm-br0", "rm-br1"):
            subprocess.run(["ip", "link", "del", link], check=False, capture_output=True)
