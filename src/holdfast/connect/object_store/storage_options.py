"""How to talk to an object store: endpoint, region, credentials by reference, timeouts.

A value that is declared once and sent to tasks. It holds no secret, only references; what it does not say, the usual
environment variables do (`AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, …), and
behind them the roles of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.connect.secret_text import check_reference, secret
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.spans import seconds_of

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, RetryConfig

__all__ = ["AnyOptions", "StorageOptions", "StoreSettings", "storage_options"]

AnyOptions = Mapping[str, str | int | float | bool]

_SECRET = re.compile(
    r"secret|password|token(?!_file)|account_key|(^|_)(sas|access|storage|encryption|master)_key$|service_account_key|customer_key|bearer"
)
_REFERENCE = ("env:", "file:")
_ENDPOINTS = ("endpoint", "endpoint_url", "endpoint_url_s3", "base_url")
_CLIENT = frozenset({"allow_http", "allow_invalid_certificates", "proxy_url", "user_agent"})
_TIMES = frozenset({"timeout", "connect_timeout", "read_timeout"})
_OURS = frozenset({"bucket", "bucket_name", "container", "container_name"})

_RETRIES = 8
_RETRY_SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(milliseconds=100), timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What a client is made with. Secrets are in clear: for the library alone."""

    config: tuple[tuple[str, str], ...] = field(repr=False)
    client: tuple[tuple[str, str | bool], ...]
    retries: int
    retry_seconds: float

    def retry(self) -> RetryConfig:
        pauses: BackoffConfig = {"init_backoff": _FIRST_PAUSE, "max_backoff": _LONGEST_PAUSE, "base": 2}
        return {
            "max_retries": self.retries, "retry_timeout": timedelta(seconds=self.retry_seconds), "backoff": pauses
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """See `storage_options`."""

    settings: tuple[tuple[str, str], ...] = ()
    client: tuple[tuple[str, str | bool], ...] = ()
    references: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    retries: int = _RETRIES
    retry_seconds: float = _RETRY_SECONDS

    def looked_up(self, by: str) -> StoreSettings:
        """With what references lead to now, so that a credential that was exchanged in its file is used."""
        found = tuple((name, secret(by, f"storage_options['{name}']", where)) for name, where in self.references)
        return StoreSettings((*self.settings, *found), self.client, self.retries, self.retry_seconds)

    def get(self, *names: str) -> str | None:
        """A setting that is no secret, by any of its names."""
        return next((value for name, value in self.settings if _plain(name) in names), None)


def storage_options(where: str, given: AnyOptions | None) -> StorageOptions:
    """What was given as `storage_options`, checked. Names are those of the library `obstore`, e.g. "endpoint",
    "region", "access_key_id", with or without "aws_", "google_" or "azure_" before them."""
    if given is None:
        return StorageOptions()
    if not isinstance(given, Mapping):
        raise WrongTypeError(
            f"{where}: storage_options is a {type(given).__name__}",
            cure="give a dictionary, e.g. {'region': 'eu-central-1', 'secret_access_key': 'env:MY_SECRET'}",
        )
    settings: dict[str, str] = {}
    client: dict[str, str | bool] = {}
    references: dict[str, str] = {}
    retries, seconds = _RETRIES, _RETRY_SECONDS
    for name, value in given.items():
        plain = _plain(name)
        if plain in _OURS:
            raise DeclarationError(
                f"{where}: storage_options['{name}'] is managed by Holdfast and cannot be set",
                cure="the address names the bucket",
            )
        if plain == "max_retries":
            retries = _whole(where, name, value)
        elif plain == "retry_timeout":
            seconds = seconds_of(f"{where}: retry_timeout", value)
        elif plain in _TIMES:
            client[plain] = f"{seconds_of(f'{where}: {plain}', value) * 1000:.0f}ms"
        elif plain in _CLIENT:
            client[plain] = value if isinstance(value, bool) else str(value)
        elif _SECRET.search(plain) or (isinstance(value, str) and value.startswith(_REFERENCE)):
            references[name] = check_reference(where, f"storage_options['{name}']", value)
        else:
            settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
    for name, address in [*settings.items(), *client.items()]:
        if _plain(name) in (*_ENDPOINTS, "proxy_url") and urlsplit(str(address)).password is not None:
            raise DeclarationError(
                f"{where}: storage_options['{name}'] has a password in it, which would be seen in messages",
                cure="leave it out of the address, or have a proxy of this machine add it",
            )
    if any(_plain(name) in _ENDPOINTS and value.startswith("http://") for name, value in settings.items()):
        client.setdefault("allow_http", True)  # who writes http:// has said so
    return StorageOptions(
        tuple(sorted(settings.items())), tuple(sorted(client.items())), tuple(sorted(references.items())),
        retries, seconds,
    )  # fmt: skip


def _plain(name: str) -> str:
    return re.sub(r"^(aws|google|gcs|azure)_", "", str(name).lower())


def _whole(where: str, name: str, value: object) -> int:
    try:
        found = int(str(value))
    except ValueError:
        found = -1
    if found < 0:
        raise DeclarationError(
            f"{where}: storage_options['{name}'] is {value!r}", cure="give a whole number, 0 or more"
        )
    return found
