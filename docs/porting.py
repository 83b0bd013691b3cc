"""Puts the jobs of `examples/porting/`, which the tests run, into the pages that show them. `make reference`.

A comment such as `<!-- windowed_counts: structured_streaming -->` names a file and what of it the block below shows.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

__all__ = ["JOBS", "PAGE", "TUTORIALS", "rendered", "shown"]

PAGE = Path(__file__).with_name("from-structured-streaming.md")
TUTORIALS = [PAGE.with_name("kafka-to-delta.md"), PAGE.with_name("keyed-state.md")]
JOBS = Path(__file__).parents[1] / "examples/porting"
_BLOCK = re.compile(r"^<!-- (\w+): ([\w ]+) -->\n```python\n.*?^```$", re.MULTILINE | re.DOTALL)


def shown(text: str) -> dict[str, list[str]]:
    """What the page shows of each job."""
    found: dict[str, list[str]] = {}
    for match in _BLOCK.finditer(text):
        found.setdefault(match[1], []).extend(match[2].split())
    return found


def rendered(text: str) -> str:
    """The page with the code as it is now."""
    return _BLOCK.sub(
        lambda match: f"<!-- {match[1]}: {match[2]} -->\n```python\n{_code(match[1], match[2].split())}\n```", text
    )


def _code(job: str, names: list[str]) -> str:
    lines = (JOBS / f"{job}.py").read_text(encoding="utf-8")
    parts = {
        node.name: ast.get_source_segment(lines, node)
        for node in ast.parse(lines).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    return "\n\n\n".join(str(parts[name]) for name in names)


if __name__ == "__main__":
    for page in (PAGE, *TUTORIALS):
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
