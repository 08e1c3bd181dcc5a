"""What a site has spent of its privacy: every reply counts when it is about to leave, also one that is sent again.

mu^2 adds up (accounting.py); the file says of how many replies, in each run and in all runs together.
"""

import json
import math
import threading
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.errors import InputError, Refusal, refuse_unless
from equipoise.files import locked, make_folder, read_text, write_whole
from equipoise.privacy.accounting import mu_for

FILE = "privacy.json"
ROUNDING = 1 + 1e-9  # a budget that is made for so many replies holds them
_spending = threading.RLock()


class Budget(NamedTuple):
    """How much may be given away."""

    epsilon: float
    delta: float

    @property
    def most(self) -> float:
        """mu^2."""
        return mu_for(self.epsilon, self.delta) ** 2 * ROUNDING


def spent(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    if not path.is_file():
        return {"mu2": 0.0, "replies": 0, "runs": {}}
    try:
        saved = json.loads(read_text(path))
        runs = {str(run): float(mu2) for run, mu2 in saved["runs"].items()}
        total, replies = float(saved["mu2"]), int(saved["replies"])
        sound = all(0 <= mu2 < math.inf for mu2 in (total, *runs.values()))
        refuse_unless(sound and sum(runs.values()) <= total * ROUNDING, "it is damaged")
        return {"mu2": total, "replies": replies, "runs": runs}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, InputError, Refusal):
        raise Refusal("what this site has spent of its privacy cannot be read") from None


def spend(folder: Path, run: str, mu2: float, of_run: Budget, of_site: Budget | None) -> None:
    """Counts one reply; a Refusal, and nothing is spent, where a budget would be exceeded."""
    with _spending:
        make_folder(folder)
        with locked(folder / "privacy.lock", f"the budget of {folder.name}", wait=30.0):
            before = spent(folder)
            in_run = float(before["runs"].get(run, 0.0)) + mu2
            total = before["mu2"] + mu2
            for budget, new, whose in ((of_run, in_run, "this run"), (of_site, total, "this site, over all runs,")):
                refuse_unless(
                    budget is None or new <= budget.most,
                    f"with this reply {whose} would have given away more than epsilon "
                    f"{budget.epsilon if budget else 0:g} at delta {budget.delta if budget else 0:g}",
                )
            now = {"mu2": total, "replies": before["replies"] + 1, "runs": {**before["runs"], run: in_run}}
            write_whole(folder / FILE, json.dumps(now, indent=1))
