"""Libraries that a connector needs and that are not installed with Holdfast itself, but by an extra.

A connector says that its library is missing when it is declared, which does not import it; it is imported where it is
first used, so that nobody else waits for it.
"""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import DeclarationError

__all__ = ["require_library"]


def require_library(module: str, extra: str, by: str) -> None:
    """Raise unless a library can be imported; `by` is what needs it, e.g. "hf.sink.delta()"."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # of a package above it
        found = None
    if found is None:
        raise DeclarationError(
            f"{by} needs the library '{module}', which is not installed", cure=f"pip install 'holdfast[{extra}]'"
        )
