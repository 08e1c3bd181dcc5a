"""What a client must not forget between two messages, in a file of the site's own.

Every message may start a new process, and a process may die; so the states stand in one file per run, replaced as a
whole. It holds the few states that the server may still start from (`envelope.Address`), each under its mark.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from jaxtyping import PyTree

from equipoise import tensors
from equipoise.deploy.wire.arrays import Refusal, refuse_unless
from equipoise.deploy.wire.envelope import Address, mark, order
from equipoise.protocol import Client

RUNS = 20  # that a site remembers


class Memory(NamedTuple):
    """One client's states in one run."""

    path: Path
    like: PyTree  # of one state

    def states(self) -> dict[str, Client]:
        """By mark, the newest last."""
        if not self.path.exists():
            return {}
        try:
            arrays, about = tensors.read(self.path)
            marks = list(json.loads(about))
        except (TypeError, ValueError) as error:
            raise Refusal(f"what this site remembered of the run cannot be read ({type(error).__name__})") from None
        try:
            return {made_by: tensors.tree_like(self.like, arrays, str(j)) for j, made_by in enumerate(marks)}
        except tensors.Misfit:
            raise Refusal("what this site remembered of the run is of another algorithm or model") from None

    def keep(self, at: Address, exchange: int, state: Client) -> None:
        """Adds a state, and drops those that the server will not go back to."""
        states, new = self.states(), mark(at.attempt, at.round, exchange)
        check_order(states, new)
        kept = {m: s for m, s in states.items() if m in (at.since, *at.keep) and m != new} | {new: state}
        arrays = {f"{j}{name}": a for j, s in enumerate(kept.values()) for name, a in tensors.named(s)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        tensors.write(self.path, arrays, json.dumps(list(kept)))
        part = self.path.name.partition("-")[0]
        forget_old(self.path.parent.glob(f"{part}-*.safetensors"))


def forget_old(files: Iterable[Path], kept: int = RUNS) -> None:
    """Of the runs that a site has taken part in, or was asked to, the last are remembered."""
    found = [path for path in files if path.is_file()]
    if len(found) > kept:
        for old in sorted(found, key=lambda path: path.stat().st_mtime_ns)[:-kept]:
            old.unlink(missing_ok=True)


def check_order(states: dict[str, Client], new: str) -> None:
    """A message that was overtaken by a later one must not change anything."""
    late = bool(states) and order(new) < max(map(order, states))
    refuse_unless(not late, "this message came too late: a later one has been answered already")
