"""The error tree: every error Holdfast raises on purpose, in one place.

Each error says what went wrong, carries the place as typed fields (operator, epoch) and a cure: what the
person reading it can do. `str(error)` holds all of it, so that a log line or a traceback is enough.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from holdfast.client_batches import Count, TakenBatch

__all__ = [
    "AccessDeniedError",
    "AlreadyRunningError",
    "BadRowError",
    "BodyTooLargeError",
    "ClassArchiveError",
    "ClusterError",
    "CommandGoneError",
    "CorruptFileError",
    "CorruptPUnitError",
    "CorruptRecordError",
    "CycleError",
    "DeadlineError",
    "DeclarationError",
    "DescriptorError",
    "DuplicateNameError",
    "EmptyOutputError",
    "EpochFailedError",
    "HoldfastError",
    "IncompleteBodyError",
    "IngressBusyError",
    "IngressStoppingError",
    "InputError",
    "InvalidTransitionError",
    "JavaNotFoundError",
    "JobLostError",
    "LeaseLostError",
    "ListenError",
    "LookupTableError",
    "MalformedBodyError",
    "NotAuthenticatedError",
    "ObjectStoreError",
    "OldStoreError",
    "OperatorError",
    "OutputConflictError",
    "OutputUnwritableError",
    "PipelineChangedError",
    "PipelineFileError",
    "PlacedError",
    "RefusedError",
    "ScaleAbortedError",
    "SchemaMismatchError",
    "StoreBusyError",
    "StoreFullError",
    "StoreUnreachableError",
    "StreamFullError",
    "StreamGapError",
    "TakenBeforeError",
    "UnboundedStateError",
    "UnknownColumnError",
    "UnknownStateError",
    "UnknownStreamError",
    "UnknownVersionError",
    "UnsafeDirectoryError",
    "UnseenFileError",
    "UnsupportedBodyError",
    "UntrustedFileError",
    "WrongTypeError",
]


class HoldfastError(Exception):
    """Base of all errors. `problem` is what happened, `cure` what to do about it."""

    def __init__(
        self,
        problem: str,
        *,
        cure: str,
        operator: str | None = None,
        epoch: int | None = None,
    ) -> None:
        self.problem = problem
        self.cure = cure
        self.operator = operator
        self.epoch = epoch
        super().__init__(problem, cure, operator, epoch)

    def __str__(self) -> str:
        place = []
        if self.operator is not None:
            place.append(f"operator '{self.operator}'")
        if self.epoch is not None:
            place.append(f"epoch {self.epoch}")
        where = f"{', '.join(place)}: " if place else ""
        return f"{where}{self.problem}\n  cure: {self.cure}"

    def at(self, *, operator: str | None = None, epoch: int | None = None) -> HoldfastError:
        """The same error with the place filled in where it was not known before."""
        self.operator = self.operator if self.operator is not None else operator
        self.epoch = self.epoch if self.epoch is not None else epoch
        return self

    def __reduce__(self) -> tuple[object, ...]:
        common = (self.problem, self.cure, self.operator, self.epoch)
        return (_rebuild, (type(self), *common), dict(vars(self)))


def _rebuild(
    kind: type[HoldfastError], problem: str, cure: str, operator: str | None, epoch: int | None
) -> HoldfastError:
    return kind(problem, cure=cure, operator=operator, epoch=epoch)


class DeclarationError(HoldfastError):
    """The pipeline as declared cannot run. Raised while declaring, before anything is started."""


class UnknownColumnError(DeclarationError):
    """An expression names a column that the operator's input does not have."""


class WrongTypeError(DeclarationError):
    """A column or an argument has a type the operator cannot use."""


class UnboundedStateError(DeclarationError):
    """A stateful operator without a window or a time-to-live would grow forever."""


class CycleError(DeclarationError):
    """The operators form a loop."""


class DuplicateNameError(DeclarationError):
    """Two operators, sources or sinks of one pipeline have the same name."""


class PipelineFileError(HoldfastError):
    """The file given on the command line holds no pipeline, or several and none was named."""


class OperatorError(HoldfastError):
    """A function or an expression of the user's raised while an epoch ran."""


class InputError(HoldfastError):
    """Input of an epoch cannot be used. `file` is the one that it is in, where there is one."""

    file: str | None = None

    def of(self, file: str) -> InputError:
        """The same error with the file filled in."""
        self.file = self.file or file
        return self


class BadRowError(InputError):
    """A row from a source does not fit the declared schema."""


class CorruptFileError(InputError):
    """An input file is truncated or is not what its format says."""


class CorruptPUnitError(HoldfastError):
    """A p-unit's bytes do not match its checksum, or the p-unit is missing."""


class CorruptRecordError(HoldfastError):
    """A plan, a record, a manifest or another text of the store is not what was written, or does not match its
    checksum."""


class StoreFullError(HoldfastError):
    """The disk of the store is full; the epoch was not committed."""


class ObjectStoreError(HoldfastError):
    """An object store does not answer, or refuses what it is asked for."""


class UnsafeDirectoryError(HoldfastError):
    """A directory that must be private to this user belongs to another one, or is open to others."""


class UntrustedFileError(HoldfastError):
    """A file that would be run has not been written by this run."""


class StoreUnreachableError(HoldfastError):
    """The database of the meta store does not answer. Whether the last transaction counts, only the database knows."""


class StoreBusyError(StoreUnreachableError):
    """Another process locks the database of the meta store. The transaction has not begun."""


class StreamFullError(HoldfastError):
    """A p-stream holds as many bytes as its budget allows: its readers must catch up first."""


class StreamGapError(HoldfastError):
    """A p-stream no longer has what its reader must read next."""


class UnknownStreamError(HoldfastError):
    """The p-stream asked for does not exist, or has other columns than declared."""


class UnknownVersionError(HoldfastError):
    """A store, manifest or p-unit was written by a version this program does not know."""


class OldStoreError(UnknownVersionError):
    """A store was written by an older version and must be upgraded before it is used like this."""


class PipelineChangedError(HoldfastError):
    """The pipeline's code no longer fits the state that an earlier run left."""


class OutputConflictError(HoldfastError):
    """What a sink writes to holds the output of another pipeline, or of another history of this one."""


class OutputUnwritableError(HoldfastError):
    """A sink cannot write to the place it was given."""


class UnseenFileError(HoldfastError):
    """A task has written a file that the driver does not see; the epoch was not committed."""


class EmptyOutputError(HoldfastError):
    """The output that others are compared with has no rows, so being equal to it would prove nothing."""


class UnknownStateError(HoldfastError):
    """The state asked for does not exist: no such pipeline, operator or retained epoch."""


class AlreadyRunningError(HoldfastError):
    """Another process holds the lease on the pipeline."""


class LeaseLostError(HoldfastError):
    """This process no longer holds the lease, so it may not commit."""


class EpochFailedError(HoldfastError):
    """The Spark job of an epoch failed for a reason that is not the user's code or data."""


class JobLostError(EpochFailedError):
    """Spark gave up the job of an epoch, e.g. because its executors died. A retry may succeed."""


class LookupTableError(HoldfastError):
    """A lookup table cannot be read at the first start, or has other columns than it was declared with."""


class DeadlineError(HoldfastError):
    """An epoch, a source or a sink has exceeded its deadline without progress."""


class InvalidTransitionError(HoldfastError):
    """An event arrived that the protocol does not allow in its present state."""


class ClassArchiveError(HoldfastError):
    """Java cannot keep an archive of the classes it has loaded; sessions start without one."""


class JavaNotFoundError(HoldfastError):
    """Spark cannot start: the machine has no Java that is new enough."""


class ScaleAbortedError(HoldfastError):
    """A change of parallelism was given up before it took effect; nothing has changed."""


class CommandGoneError(HoldfastError):
    """A command was withdrawn, or answered by another process, before it was carried out."""


class PlacedError(HoldfastError):
    """Something that was given is not valid. `place` says where the fault is in it."""

    def __init__(
        self,
        problem: str,
        *,
        cure: str,
        operator: str | None = None,
        epoch: int | None = None,
        place: str | None = None,
    ) -> None:
        super().__init__(problem, cure=cure, operator=operator, epoch=epoch)
        self.place = place


class RefusedError(PlacedError):
    """Nothing of what a client sent was accepted. `operator` is the source it was for, `place` where the fault is."""


class TakenBeforeError(RefusedError):
    """What a client sends was accepted before: `batches` by their ids, as they were accepted then, and `counts` of
    clients whose lines have advanced since they were asked how far they are."""

    def __init__(
        self,
        problem: str,
        *,
        cure: str,
        operator: str | None = None,
        epoch: int | None = None,
        batches: Mapping[str, TakenBatch] = MappingProxyType({}),
        counts: Collection[Count] = (),
    ) -> None:
        super().__init__(problem, cure=cure, operator=operator, epoch=epoch)
        self.batches = dict(batches)
        self.counts = tuple(counts)


class NotAuthenticatedError(RefusedError):
    """The source was declared with a token, and the client gave none."""


class AccessDeniedError(RefusedError):
    """The client's token is not the one the source was declared with."""


class MalformedBodyError(RefusedError):
    """What the client sent is not what its format says."""


class IncompleteBodyError(RefusedError):
    """The client stopped sending in the middle."""


class BodyTooLargeError(RefusedError):
    """The client sent more at a time than the source was declared to take."""


class UnsupportedBodyError(RefusedError):
    """The client sent a format or a compression that the source does not take."""


class SchemaMismatchError(RefusedError):
    """Columns or rows that the client sent do not fit the schema of the source."""


class IngressBusyError(RefusedError):
    """Too much is on its way to the disk: try again a little later."""


class IngressStoppingError(RefusedError):
    """The receiver takes no more, because it is stopping: try again when it is back."""


class ListenError(HoldfastError):
    """A receiver cannot listen on the address it was given."""


class ClusterError(HoldfastError):
    """A cluster does not start, or lacks the requested resources."""


class DescriptorError(PlacedError):
    """A LAAR descriptor or strategy is not valid. `place` says where, e.g. `edges[3].selectivity`."""

    def __str__(self) -> str:
        return f"{self.place}: {super().__str__()}" if self.place else super().__str__()


def gist(error: BaseException) -> str:
    """The line that matters in Spark's long messages: the last Python exception, or the first line."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an error of Java is asked for its text, and Java may be gone
        return type(error).__name__
    raised = re.findall(r"^\s*(\w+(?:\.\w+)*(?:Error|Exception|Interrupt)\b.*)$", text, flags=re.MULTILINE)
    return str(raised[-1]) if raised else text.strip().partition("\n")[0]
