"""`holdfast scheme`: how the secondary of a pipeline is kept, seen and changed while it runs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import SecondsRange, meta_option, store_option
from holdfast.errors import InvalidTransitionError, UnknownStateError

__all__ = ["scheme"]


class _SchemeCommand(HoldfastCommand):
    """Its help lists the schemes there are."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from holdfast.replica.schemes import wheel

        with formatter.section("Schemes, the fastest recovery first"):
            formatter.write_dl([(scheme.name, scheme.summary) for scheme in wheel.SCHEMES])


@click.command(cls=_SchemeCommand)
@click.argument("pipeline")
@click.argument("to", metavar="[SCHEME]", required=False)
@store_option
@meta_option
@click.option("--all-the-way", is_flag=True, help="Allow several steps at once.")
@click.option("--wait", type=SecondsRange(min=0), default=0.0, show_default=True, metavar="DURATION",
              help="Wait until the secondary has reached the scheme.")  # fmt: skip
def scheme(pipeline: str, to: str | None, store: Path, meta: str | None, all_the_way: bool, wait: float) -> None:
    """Show the replication scheme of PIPELINE, or of one of its fragments; with SCHEME, change it.

    A step goes from one scheme to the next in the list below, in either direction.
    """
    from holdfast.meta import opened_meta
    from holdfast.meta.lease_holder import this_process
    from holdfast.replica.scheme_change import is_reached, named, turn, turn_to
    from holdfast.replica.seat_store import Agreement, deployed_fragments
    from holdfast.replica.supervisor import described

    with opened_meta(store, meta, writes=to is not None) as opened:
        agreement = Agreement(opened, this_process(), time.time)
        deployed = deployed_fragments(opened)
        fragments = [name for names in deployed.values() for name in names]
        chosen = [name for name in fragments if name == pipeline or name.startswith(f"{pipeline}.")]
        if not chosen:
            known = ", ".join(deployed) or "nothing; start it with holdfast up"
            raise UnknownStateError(f"no hosts run '{pipeline}'", cure=f"they run: {known}")
        for fragment, agreed in agreement.look(chosen if to is not None else []).items():
            if agreed.seats.active is not None:
                raise InvalidTransitionError(
                    f"the completeness guarantee decides which replicas of '{fragment}' are active",
                    cure="run it without that guarantee to choose a scheme",
                )
        for fragment in chosen if to is not None else ():
            assert to is not None
            try:
                (turn_to if all_the_way else turn)(agreement, fragment, named(to))
            except InvalidTransitionError as error:
                if not error.cure.startswith("go "):
                    raise
                raise InvalidTransitionError(error.problem, cure=f"{error.cure}, or give --all-the-way") from None
        until = time.monotonic() + wait
        while to is not None and time.monotonic() < until and not is_reached(agreement, chosen, named(to)):
            time.sleep(0.1)
        for fragment, agreed in agreement.look(chosen).items():
            click.echo(f"{fragment}: {described(agreed)}")
        if to is not None and wait and not is_reached(agreement, chosen, named(to)):
            raise UnknownStateError(
                f"the secondary was not ready within {wait:g} s",
                cure="see the logs of the hosts; if no host runs, start holdfast up",
            )
