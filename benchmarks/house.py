"""How large and how tangled the package is, as tables of one or more checkouts: `python -m benchmarks.house [ROOT …]`.

Code lines are lines with a token that is neither comment nor docstring. A function is as long as from `def` to its
end without its docstring. An import cycle is a set of modules that reach each other by imports outside functions.
Hops are defined and measured in `benchmarks.hops`.
"""

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import networkx as nx
import numpy as np

QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
MATHEMATICS = ("core", "metrics")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file of the package."""

    path: Path
    module: str
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text)

    @cached_property
    def code(self) -> list[str]:
        """The lines that hold code, without their indentation."""
        lines = self.text.splitlines()
        numbers: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in QUIET:
                numbers.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
                if is_text(statement):
                    numbers.difference_update(range(statement.lineno, (statement.end_lineno or 0) + 1))
        return [lines[number - 1].strip() for number in sorted(numbers)]

    @property
    def functions(self) -> list[Function]:
        """All functions and methods, nested ones too."""
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    def imports(self) -> Iterator[str]:
        """Yield every dotted name that is imported outside functions, also for types only."""
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif not isinstance(node, Function):
                waiting += ast.iter_child_nodes(node)


def is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, of whatever it documents."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def body(function: Function) -> list[ast.stmt]:
    """Return a function's statements without its docstring."""
    return function.body[1:] if is_text(function.body[0]) else function.body


def length(function: Function) -> int:
    """Return a function's lines without its docstring."""
    first = function.body[0]
    text = (first.end_lineno or 0) - first.lineno + 1 if is_text(first) else 0
    return (function.end_lineno or 0) - function.lineno + 1 - text


class House:
    """The package in a checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        package = root / "src" / "ratemesh"
        self.layers: dict[str, list[Source]] = defaultdict(list)
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package).with_suffix("").parts
            module = ".".join(["ratemesh", *(part for part in parts if part != "__init__")])
            self.layers[parts[0] if len(parts) > 1 else "."].append(Source(path, module, path.read_text("utf-8")))
        self.sources = [source for sources in self.layers.values() for source in sources]

    def cycles(self) -> int:
        """Return how many sets of modules import each other."""
        modules = {source.module for source in self.sources}
        graph: nx.DiGraph[str] = nx.DiGraph()
        for source in self.sources:
            for name in source.imports():
                found = name if name in modules else name.rpartition(".")[0]
                if found in modules and found != source.module:
                    graph.add_edge(source.module, found)
        return sum(len(part) > 1 for part in nx.strongly_connected_components(graph))

    def hops(self) -> dict[str, str]:
        """Trace what an image and a message go through, with this checkout's package."""
        place = {**os.environ, "PYTHONPATH": str(self.root.resolve() / "src"), "OMP_NUM_THREADS": "1"}
        script = Path(__file__).with_name("hops.py")
        done = subprocess.run([sys.executable, "-P", script], env=place, check=True, capture_output=True, text=True)
        found: dict[str, list[tuple[str, str]]] = json.loads(done.stdout)
        plumbing = [pair for pair in found["image"] if Path(pair[0]).parent.name not in MATHEMATICS]
        named = {"image": found.pop("image"), f"image, without {' and '.join(MATHEMATICS)}": plumbing, **found}
        return {
            f"hops: {what}": f"{len(pairs)} over {len({file for file, _ in pairs})} files"
            for what, pairs in named.items()
        }

    def numbers(self) -> dict[str, str]:
        """Return what is said of the package as a whole."""
        lines = sum(len(source.text.splitlines()) for source in self.sources)
        code = [line for source in self.sources for line in source.code]
        functions = [function for source in self.sources for function in source.functions]
        tests = sum(len(path.read_text("utf-8").splitlines()) for path in (self.root / "tests").rglob("*.py"))
        return {
            "files": f"{len(self.sources)}",
            "lines": f"{lines:,}",
            "code lines": f"{len(code):,}",
            "characters a code line": f"{np.mean([len(line) for line in code]):.1f}",
            "functions": f"{len(functions):,}",
            "function length, p90": f"{np.percentile([length(f) for f in functions], 90):.0f}",
            "one-statement functions": f"{sum(len(body(f)) == 1 for f in functions):,}",
            "import cycles": f"{self.cycles()}",
            "test lines / source lines": f"{tests / lines:.2f}",
        }

    def layer(self, name: str) -> str:
        """Return files, lines and code lines of a layer."""
        sources = self.layers.get(name, [])
        lines = sum(len(source.text.splitlines()) for source in sources)
        return f"{len(sources)} / {lines:,} / {sum(len(source.code) for source in sources):,}" if sources else "–"


def table(heading: str, columns: Sequence[str], rows: dict[str, list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [[heading, *columns], ["---", *["---:"] * len(columns)], *([name, *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("roots", nargs="*", type=Path, default=[Path()], help="checkouts, a column each")
    parser.add_argument("--static", action="store_true", help="leave out the hops, which take a run each")
    arguments = parser.parse_args()
    houses = [House(root) for root in arguments.roots]
    found = [house.numbers() | ({} if arguments.static else house.hops()) for house in houses]
    columns = [house.root.resolve().name for house in houses]
    print(table("", columns, {name: [numbers[name] for numbers in found] for name in found[0]}))
    layers = sorted({layer for house in houses for layer in house.layers})
    print(
        table("files / lines / code lines", columns, {f"`{x}`": [house.layer(x) for house in houses] for x in layers})
    )


if __name__ == "__main__":
    main()
