"""Windows: how a stream is divided into finite pieces, for `stream.window(window)` and `stream.join(...,
window=window)`.

Windows of time (`tumbling`, `sliding`) are aligned to zero on the event-time axis: `tumbling("10s")` has the windows
[0, 10), [10, 20), ... A window is half-open, `[start, end)`, and its result comes once, when the watermark reaches its
end. `session` follows the bursts of a key's rows, `count` their number.
"""

import typing as _typing

from holdfast.graph.windows import Window, count, session, sliding, tumbling
from holdfast.renamed import attribute_error as _attribute_error

__all__ = ["Window", "count", "session", "sliding", "tumbling"]


if not _typing.TYPE_CHECKING:  # a type checker would take it to say that every name is here

    def __getattr__(name):
        raise _attribute_error(name, "hf.window", "module 'holdfast.window'")
