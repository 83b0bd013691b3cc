"""What a host does that may publish: plan epochs, commit them, send them on, make checkpoints, and leave gaps.

Inputs and older checkpoints are released when the ledger has a newer one, not when it was written; output is sent when
the ledger has it as committed, not when it was made.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.replica.ledger import CommitEpoch, MarkCheckpoint, PlanEpoch, Skip, View
from holdfast.replica.messages import Local, Publish, Release, Run, Save, Subscribe, Sweep, Write
from holdfast.replica.queues import Inbox, Slices, Vector
from holdfast.replica.seating import Resign
from holdfast.replica.seats import Seated

__all__ = ["Publishing"]

_PATIENCE_WRITES = 3


@dataclass(slots=True)
class Publishing(Seated):
    def _plan(self, view: View) -> None:
        state, inbox = self.state, self.inbox
        if inbox is None or state is None or state.epoch < view.committed or PlanEpoch in self._asked:
            return
        if view.planned >= view.committed + self.timing.flight:
            return
        slices = self._slices(view.planned_ends, inbox)
        if any(first < end for first, end in slices):
            self._ask(PlanEpoch(self._required(), view.planned + 1, slices))

    def _slices(self, begins: Vector, inbox: Inbox) -> Slices:
        made = []
        for begin, first, seen in zip(begins, inbox.first, inbox.seen, strict=True):
            start = begin if self.precise else max(begin, first)
            made.append((start, min(max(start, seen), start + self.timing.most_rows)))
        return tuple(made)

    def _commit(self, view: View) -> None:
        epoch = view.committed + 1
        value = self.outputs.get(epoch)
        if value is None:
            return
        if epoch in self._written:
            self._ask(CommitEpoch(self._required(), epoch, value))
        elif self._failures >= _PATIENCE_WRITES and self.is_primary and view.secondary is not None:
            self._ask(Resign(self._required()))
        elif Write not in self._busy and not self._blocked:
            self._begin(Write(epoch, self._required(), value))

    def _publish(self, view: View) -> None:
        for epoch in range(max(view.delivered, self.acked) + 1, view.committed + 1):
            record = view.records.get(epoch)
            if epoch not in self._sent and record is not None:
                self._sent.add(epoch)
                self._do(Publish(epoch, record.token, record.skipped))

    def _keep(self, view: View) -> None:
        """Make checkpoints, and release what only an older one needed: when the ledger has the new one, not before."""
        token = self._required()
        marked = self._snapshots.get(view.checkpoint)
        if view.checkpoint > self._released and view.checkpoint_token == token and marked is not None:
            self._released = view.checkpoint
            older = self._snapshots.get(view.previous)
            if older is not None:
                self._do(Release(older.ends))
            self._sweep(view)
        saved = self._saved
        if saved is not None and (saved.lineage != view.lineage or saved.epoch <= view.checkpoint):
            saved = self._saved = None
        if saved is not None:
            self._ask(MarkCheckpoint(token, saved.epoch))
        elif view.committed - view.checkpoint >= self.timing.checkpoint_epochs and not self._blocked:
            state = self._snapshots.get(view.committed)
            if state is not None and Save not in self._busy:
                self._begin(Save(state, token))

    def _sweep(self, view: View) -> None:
        """A token below all that are valid now will never commit; one that is not known here may be newer."""
        live = [each.token for each in (view.primary, view.secondary) if each is not None]
        named = {(epoch, record.token) for epoch, record in view.records.items()}
        named.add((view.checkpoint, view.checkpoint_token))
        self._do(Sweep(view.delivered, view.previous, min(live), frozenset(named)))

    def _leave_gap(self, view: View) -> None:
        """Gap recovery: what is planned and what the state has not seen is left out, and said to be. The state is made
        the checkpoint first, so that whoever comes next goes on from the same."""
        state = self.state
        if state is None or Run in self._busy:
            return
        skipping = self._skipping
        if skipping is not None and skipping.lineage == view.lineage and view.checkpoint_token == self._token:
            self._go_on_from(skipping)
            self._gap_due, self._skipping, self._saved = False, None, None
            self.inbox = None
            self._begin(Subscribe(None))
            return
        if state.lineage != view.lineage or state.epoch < view.checkpoint:
            return
        if state.epoch >= view.committed and skipping is None:
            self._gap_due = False
            return
        if skipping is None or skipping.epoch != view.planned:
            self._skipping = Local(view.lineage + 1, view.planned, state.value, view.planned_ends)
            self._saved = None
        elif self._saved == skipping:
            self._ask(Skip(self._required(), skipping.epoch, state.epoch, state.value))
        elif Save not in self._busy and not self._blocked:
            self._begin(Save(skipping, self._required()))
