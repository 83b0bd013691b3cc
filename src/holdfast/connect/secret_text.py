"""Secrets by reference: where a password is, and never the password itself.

A reference is "env:NAME" or "file:PATH". It is looked up when it is needed, so a secret is neither in a pipeline's
description, nor in what is sent to tasks, nor in a message.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import DeclarationError

__all__ = ["check_reference", "secret"]

_ENVIRONMENT, _FILE = "env:", "file:"


def check_reference(where: str, name: str, value: object) -> str:
    """The reference, if it is one and leads to something; an error that does not repeat what was given."""
    if not isinstance(value, str) or not value.startswith((_ENVIRONMENT, _FILE)):
        raise DeclarationError(
            f"{where}: {name} is a secret and must not be written in a program",
            cure=f'give {name}="env:NAME" for the value of an environment variable, or "file:PATH" for the first line'
            " of a file",
        )
    secret(where, name, value)
    return value


def secret(where: str, name: str, reference: str) -> str:
    """What a reference leads to."""
    if reference.startswith(_ENVIRONMENT):
        variable = reference.removeprefix(_ENVIRONMENT)
        found = os.environ.get(variable, "")
        place = f"the environment variable '{variable}'"
    else:
        path = Path(reference.removeprefix(_FILE)).expanduser()
        place = f"the file {path}"
        try:
            found = path.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise DeclarationError(
                f"{where}: {name} should come from {place}, which cannot be read: {type(error).__name__}",
                cure="put it there, in UTF-8, and let this user read it, also on the machines that run tasks",
            ) from None
    if not found:
        raise DeclarationError(
            f"{where}: {name} should come from {place}, which is empty or missing",
            cure="set it before starting, also on the machines that run tasks",
        )
    return found
