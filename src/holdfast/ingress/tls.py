"""TLS of the receivers: from the files a source names to what each server wants."""

from __future__ import annotations

import ssl
from pathlib import Path

from holdfast.connect.sources.push import TlsFiles
from holdfast.errors import ListenError

__all__ = ["read_pem", "server_context"]


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For servers that take a context. With a CA for clients, only those with a certificate of it are heard."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An encrypted key must not make the process ask at a terminal that nobody sits at.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ListenError(
            f"the certificate {files.certificate} with the key {files.key} cannot be used: {error}",
            cure="give push() a certificate (with its chain), its unencrypted key and the clients' CA as PEM files that"
            " this user may read",
        ) from error
    return context


def read_pem(path: Path) -> bytes:
    """For servers that take the text. Checked before by making a context."""
    return path.read_bytes()
