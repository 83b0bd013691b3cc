"""The brokers of a Kafka cluster, and how to talk to them: addresses, TLS, SASL, and settings of the library.

A value that is declared once, used by sources and sinks, and sent to tasks. It holds no secret, only references.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import Logger
from pathlib import Path
from typing import Literal, get_args

from holdfast.connect.kafka.kafka_library import KAFKA_LOG, client_library, require_client, said
from holdfast.connect.secret_text import check_reference, secret
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.store.location import local_path

__all__ = ["ClientSetting", "KafkaServers", "SaslMechanism", "as_servers", "check_topic", "servers"]

SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

ClientSetting = str | int | float | bool | Logger

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):(\d{1,5})")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SECRET = re.compile(r"password|secret|\.key\.pem|oauthbearer\.config|private")
_OURS = {
    "bootstrap.servers": "give the addresses to hf.kafka.servers()",
    "transactional.id": "give hf.sink.kafka() another writer=",
    "enable.auto.commit": "positions are kept in the store",
    "auto.offset.reset": "give hf.source.kafka() a start=",
    "isolation.level": "what was aborted is never read",
    "enable.partition.eof": "readers need it",
    "enable.idempotence": "writers are transactional",
    "logger": "use the Python logger 'holdfast.kafka'",
}
"""Settings of the library that are not the user's, and what to do instead."""


@dataclass(frozen=True, slots=True)
class KafkaServers:
    """See `servers`."""

    addresses: str
    settings: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """References, by the names of settings."""

    def configuration(self, by: str, **more: ClientSetting) -> dict[str, ClientSetting]:
        """What a client of the library is made with; names in `more` have underscores for dots. Its secrets are in
        clear: for the library alone."""
        found: dict[str, ClientSetting] = {"bootstrap.servers": self.addresses, "logger": KAFKA_LOG}
        found |= {name.replace("_", "."): value for name, value in more.items()}
        found |= dict(self.settings)
        return found | {name: secret(by, name, reference) for name, reference in self.secrets}

    def __str__(self) -> str:
        return self.addresses


def servers(
    addresses: str,
    *,
    tls: bool = False,
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    key_password: str | None = None,
    sasl: SaslMechanism | None = None,
    user: str | None = None,
    password: str | None = None,
    settings: Mapping[str, str | int | float | bool] | None = None,
) -> KafkaServers:
    """The brokers of a Kafka cluster: "host:port", or several of them with commas between.

    With `tls` the connection is encrypted and brokers are checked, against the file `ca` if there is one; `certificate`
    and `key` are this client's own, as PEM files. `sasl` with `user` and `password` logs in. A password is never given
    itself: "env:NAME" is the value of an environment variable, "file:PATH" the first line of a file; it is looked up
    where it is needed, in the tasks, too. `settings` are any other settings of librdkafka.
    """
    where = "hf.kafka.servers()"
    _check_addresses(where, addresses)
    made: dict[str, str] = {}
    secrets: dict[str, str] = {}
    if not tls and any(given is not None for given in (ca, certificate, key, key_password)):
        raise DeclarationError(f"{where}: certificates without tls", cure="also give tls=True")
    if (certificate is None) != (key is None):
        missing = "its key" if key is None else "the certificate of the key"
        raise DeclarationError(f"{where}: TLS without {missing}", cure="give both certificate= and key=, as PEM files")
    for name, file in (("ca", ca), ("certificate", certificate), ("key", key)):
        if file is not None:
            made[f"ssl.{name}.location"] = _file(where, name, file)
    if key_password is not None:
        secrets["ssl.key.password"] = check_reference(where, "key_password", key_password)
    if sasl is not None and sasl not in get_args(SaslMechanism):
        raise DeclarationError(
            f"{where}: unknown sasl={sasl!r}", cure=f"use one of {', '.join(get_args(SaslMechanism))}"
        )
    if (sasl is None) != (user is None) or (sasl is None) != (password is None):
        raise DeclarationError(
            f"{where}: sasl, user and password go together",
            cure='give all three, e.g. sasl="SCRAM-SHA-512", user="me", password="env:KAFKA_PASSWORD"',
        )
    if sasl is not None and user is not None and password is not None:
        made["sasl.mechanisms"] = sasl
        secrets["sasl.password"] = check_reference(where, "password", password)
        if user.startswith(("env:", "file:")):
            secrets["sasl.username"] = check_reference(where, "user", user)
        else:
            made["sasl.username"] = user
    if tls or sasl is not None:
        made["security.protocol"] = ("SASL_" if sasl is not None else "") + ("SSL" if tls else "PLAINTEXT")
    for name, value in (settings or {}).items():
        if name in _OURS:
            raise DeclarationError(
                f"{where}: the setting '{name}' is managed by Holdfast and cannot be set", cure=_OURS[name]
            )
        if _SECRET.search(name):
            secrets[name] = check_reference(where, f"settings['{name}']", value)
        else:
            made[name] = str(value).lower() if isinstance(value, bool) else str(value)
    found = KafkaServers(addresses, tuple(sorted(made.items())), tuple(sorted(secrets.items())))
    _try(where, found)
    return found


def as_servers(where: str, given: str | KafkaServers) -> KafkaServers:
    """What was given as the servers of a source or a sink."""
    if isinstance(given, KafkaServers):
        return given
    _check_addresses(where, given)
    require_client(where)
    return KafkaServers(given)


def check_topic(where: str, topic: object) -> str:
    """The name of a topic, if it can be one."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise DeclarationError(
            f"{where}: {topic!r} cannot be the name of a topic",
            cure="use at most 249 letters, digits, dots, underscores and dashes",
        )
    return topic


def _check_addresses(where: str, addresses: object) -> None:
    parts = [part.strip() for part in addresses.split(",")] if isinstance(addresses, str) else []
    if not parts or any(not (match := _ADDRESS.fullmatch(part)) or int(match[2]) > 65535 for part in parts):
        raise WrongTypeError(
            f"{where}: {addresses!r} is not a list of broker addresses",
            cure='write "host:port", or several with commas',
        )


def _file(where: str, name: str, given: str | Path) -> str:
    path = local_path(given, where).absolute()
    if not path.is_file():
        raise DeclarationError(f"{where}: there is no file {path} for {name}", cure="give the path of a PEM file")
    return str(path)


def _try(where: str, made: KafkaServers) -> None:
    """Whether the library takes the settings: it says what it does not know when a client is made."""
    library = client_library(where)
    try:
        library.Consumer(made.configuration(where, group_id="holdfast")).close()
    except library.KafkaException as error:
        text = said(error)
        for name, reference in made.secrets:
            text = text.replace(secret(where, name, reference), "…")
        raise DeclarationError(
            f"{where}: the client library refuses the settings: {text}",
            cure="correct settings=, tls= or sasl=; the names are those of librdkafka's CONFIGURATION.md",
        ) from None
