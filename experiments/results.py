"""Tables of experiments/RESULTS.md that scripts write themselves, between markers."""

from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"


def write_table(name: str, lines: Sequence[str]) -> None:
    """Replace what stands between the markers of a table; new markers go to the end of the file."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = RESULTS.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    RESULTS.write_text(before + "\n".join([begin, "", *lines, "", end]) + (after or "\n"), encoding="utf-8")
