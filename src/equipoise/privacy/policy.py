"""What a site agrees to, in a file of its own (site.toml): looked at before every answer, whatever the server sends.

approved = ["3f0c..."]   # configurations by digest; `equipoise flower approve` adds to a list beside the file
ask = true               # no run without approval
algorithms = ["scaffpd_sums", "fedavg"]
secure = true            # totals leave masked only
least_cohort = 5         # sites that a run, and a masked sum, must be over
losses = false           # its own loss and scores are told to nobody
baseline = false         # how well a model of its own rows alone would do is told to nobody
min_count = 10           # a text that occurs less often in a column is not told
epsilon = 3.0            # the budget of all runs together, see docs/privacy.md
delta = 1e-5
outside_budget = ["statistics"]  # with a budget, what no noise covers is refused unless it stands here
"""

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.errors import InputError, not_none, refuse_unless
from equipoise.files import append, read_text

FILE = "site.toml"
APPROVED = "approved.txt"  # digests that were approved here, a line each
PENDING = "pending"  # a folder with the configurations that were refused for want of approval
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Policy(BaseModel):
    """What a site agrees to; without a file, to everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    approved: tuple[Digest, ...] = ()
    ask: bool = False
    algorithms: tuple[str, ...] | None = None
    secure: bool = False
    least_cohort: int = Field(1, ge=1)
    losses: bool = True
    baseline: bool = True
    min_count: int = Field(1, ge=1)
    epsilon: float | None = Field(None, gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)
    outside_budget: tuple[Literal["statistics", "evaluation"], ...] = ()  # told though no noise covers it

    @property
    def asks(self) -> bool:
        return self.ask or bool(self.approved)


class Plan(NamedTuple):
    """What a run would do, as far as a policy is about it."""

    digest: str  # of its whole configuration
    algorithm: str
    sites: int
    secure: bool
    tells_losses: bool  # of single sites, in training or when a model is evaluated
    min_count: int
    epsilon: float | None  # None: no differential privacy
    delta: float | None
    tells_baseline: bool = False  # the loss of a model of its own rows alone


def digest_of(configuration: str) -> str:
    """Of a configuration, as TOML."""
    return hashlib.sha256(configuration.encode()).hexdigest()


def load(path: Path) -> Policy:
    """The policy of a file; that of a site without one agrees to everything."""
    if not path.is_file():
        return Policy()
    try:
        return Policy.model_validate(tomllib.loads(read_text(path)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise InputError(f"{path}: {where}: {first['msg']}; see docs/privacy.md") from None


def approved_here(folder: Path) -> set[str]:
    path = folder / APPROVED
    return set(read_text(path).split()) if path.is_file() else set()


def approve(folder: Path, digest: str) -> None:
    """Adds to the list, whatever the last line of it looks like."""
    path = folder / APPROVED
    before = read_text(path) if path.is_file() else ""
    append(path, ("" if before.endswith("\n") or not before else "\n") + digest + "\n")


def check(policy: Policy, plan: Plan, also_approved: set[str]) -> None:
    """A Refusal unless the plan is one that the site agrees to."""
    refuse_unless(
        not policy.asks or plan.digest in {*policy.approved, *also_approved},
        f"this configuration has not been approved here: `equipoise flower approve {plan.digest[:16]}` shows what it "
        "would reveal",
    )
    refuse_unless(
        policy.algorithms is None or plan.algorithm in policy.algorithms,
        f"this site takes part in {', '.join(policy.algorithms or ())}, not in {plan.algorithm}",
    )
    refuse_unless(not policy.secure or plan.secure, "this site sends totals masked only; set federation.secure = true")
    refuse_unless(
        plan.sites >= policy.least_cohort,
        f"this site takes part in runs over {policy.least_cohort} sites or more, not {plan.sites}",
    )
    refuse_unless(
        policy.losses or not plan.tells_losses,
        "this site tells its own loss and scores to nobody; use scaffpd_sums or fedavg with federation.secure = true",
    )
    refuse_unless(
        policy.baseline or not plan.tells_baseline,
        "this site tells nobody how well a model of its own would do; set objective.of = 'losses'",
    )
    refuse_unless(
        plan.min_count >= policy.min_count,
        f"this site does not tell texts that occur less than {policy.min_count} times; set data.min_count",
    )
    if policy.epsilon is not None:
        refuse_unless(
            plan.epsilon is not None,
            f"this site takes part only with differential privacy, epsilon {policy.epsilon:g} or less; set [privacy]",
        )
        epsilon, delta = not_none(plan.epsilon), not_none(plan.delta)
        refuse_unless(
            epsilon <= policy.epsilon and delta <= policy.delta,
            f"this site gives away epsilon {policy.epsilon:g} at delta {policy.delta:g} at most, not {epsilon:g} "
            f"at {delta:g}",
        )
