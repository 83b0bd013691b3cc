"""Whether an error came of too little memory: then another process may do what this one could not.

Libraries tell it in several ways: as a MemoryError, by the number of the system's error, or in words alone. An error of
our own that says which input could not be read has it as its cause.
"""

from __future__ import annotations

import errno
import os

__all__ = ["lacked_memory"]


def lacked_memory(error: BaseException | None) -> bool:
    seen: set[int] = set()  # an error that was raised again may be among its own causes
    while error is not None and id(error) not in seen:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        if os.strerror(errno.ENOMEM) in str(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
