"""What an object store answers instead of doing what it was asked, as an error that says what to do about it."""

from __future__ import annotations

import re

from holdfast.connect.object_store.bucket_address import Scheme
from holdfast.errors import ObjectStoreError

__all__ = ["Refusals"]

_CODE = re.compile(r"<Code>(\w+)</Code>")
_REGION = re.compile(r"<Region>([\w-]+)</Region>|expecting '([\w-]+)'")
_STATUS = re.compile(r"status code: (\d{3}[^:\n]*)")
_TOOK = re.compile(r" in [\d.]+(?:ns|µs|ms|s)\b")
_MANY = ", after"

_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give storage_options={'access_key_id': 'env:NAME',"
    " 'secret_access_key': 'env:NAME'}; {'skip_signature': True} reads a public bucket without any",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or give storage_options={'service_account': 'PATH'};"
    " {'skip_signature': True} reads a public bucket without any",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give storage_options={'account_name': …,"
    " 'account_key': 'env:NAME'}; {'skip_signature': True} reads a public container without any",
}
_EVERYWHERE = ", also on the machines that run tasks"
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google", "/latest/api/token", "credential", "no default credentials")
_WRONG_KEY = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthenticationFailed"}
)
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_WRONG_REGION = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"})


class Refusals:
    """The errors of one bucket. `bucket` is its name, `place` the address of the server where it is not the usual."""

    def __init__(self, scheme: Scheme, bucket: str, place: str | None) -> None:
        self._scheme = scheme
        self._bucket = bucket
        self._at = f" at {place}" if place else ""

    def is_broken(self, error: Exception) -> bool:
        """Whether a connection broke before it was told what the server says: worth another try."""
        first = str(error).partition("\n")[0]
        return "HTTP error" in first and not _STATUS.search(first) and "builder error" not in first

    def error(self, doing: str, refusal: Exception) -> ObjectStoreError:
        """What could not be done, e.g. "read s3://bucket/in/a.csv", and why."""
        text = str(refusal)
        code = match[1] if (match := _CODE.search(text)) else ""
        status = match[1].strip() if (match := _STATUS.search(text)) else ""
        why, cure = self._reason(text, code, status)
        return ObjectStoreError(f"cannot {doing}: {why}", cure=cure)

    def _reason(self, text: str, code: str, status: str) -> tuple[str, str]:
        kind = "container" if self._scheme == "az" else "bucket"
        bucket, said = f"{kind} '{self._bucket}'{self._at}", code or status
        credentials = _CREDENTIALS[self._scheme] + _EVERYWHERE
        first = text.strip().partition("\n")[0]
        if code in _NO_BUCKET:
            return f"there is no {bucket}", f"correct the address, or create the {kind}; Holdfast does not"
        if code in _WRONG_REGION or status.startswith("301") or "redirect" in first.lower():
            right = next((name for match in _REGION.finditer(text) for name in match.groups() if name), "")
            where = f"'{right}'" if right else "the one where it was made"
            cure = f"give storage_options={{'region': …}}, or set AWS_REGION: it is {where}"
            return f"the {bucket} is in another region", cure
        if not code and any(sign in first for sign in _NO_CREDENTIALS):
            return "there are no credentials", credentials
        if code in _WRONG_KEY:
            return f"the credentials are refused ({said})", f"correct them: {credentials}"
        if status.startswith(("401", "403")) or code == "AccessDenied":
            cure = f"let this user list, read and, for a sink, write and delete there, or use others: {credentials}"
            return f"access to the {bucket} is denied ({said})", cure
        if status and not status.startswith("5"):
            more = f" ({code})" if code else ""
            return f"the server answers {status}{more}", "check the address and storage_options"
        tries = " after several tries" if _MANY in first else ""
        found = status or _TOOK.sub("", first)[:300]
        return (
            f"the server of {bucket} does not answer properly{tries}: {found}",
            "check that it can be reached from here and that storage_options has the right endpoint, then start again:"
            " the run resumes where it was. retry_timeout and timeout in storage_options set how long to try",
        )
