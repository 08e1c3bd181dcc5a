"""What a site agrees to, in a file of its own (site.toml): looked at before every answer, whatever the server sends.

`Policy` has a field for each key of the file, docs/privacy.md says what they are for. `equipoise flower approve` adds
the digests of configurations to a list beside it.
"""

import hashlib
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.errors import InputError, not_none, refuse_unless, require
from equipoise.files import append, make_folder, read_text, write_whole
from equipoise.privacy.site_masks import Limits

FILE = "site.toml"
APPROVED = "approved.txt"  # digests that were approved here, a line each
STOPPED = "stopped.txt"  # those that were stopped here
PENDING = "pending"  # a folder with the configurations that were refused for want of approval
TRIAL = """\
# Made for a trial: all rows are on one machine, whose owner has started the run.
# Without this file the site would ask for every run, keep its split, and tell nothing of fewer than 20 rows.
ask = false
split = "asked"
draws = "asked"
min_rows = 1
min_count = 1
most_of_row = 1.0
rounds = 1000000
runs = 1000000
"""
NOT_APPROVED = "has not been approved here"  # in the refusal of a site whose owner has not looked at a run yet
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Policy(BaseModel):
    """What a site agrees to; without a file, to what its owner approves."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    approved: tuple[Digest, ...] = ()  # configurations by digest
    ask: bool = True  # no run without approval; false: whatever keeps to the rest
    algorithms: tuple[str, ...] | None = None
    label: str | None = None  # the only column to be predicted
    columns: tuple[str, ...] | None = None  # the only columns that are read besides
    split: Literal["kept", "asked"] = "kept"  # made once and kept; or as each run asks for it, for trials
    draws: Literal["own", "asked"] = "own"  # minibatches by a key of its own; or by the run's, as on one machine
    min_rows: int = Field(20, ge=1)  # that stand behind every statistic, gradient, loss and score
    min_count: int = Field(10, ge=1)  # rows that a value of a text or of the label has, or it is told to nobody
    most_of_row: float = Field(0.5, gt=0, le=1)  # of a gradient that a single row may make, as lengths
    most_step: float = Field(10.0, gt=0)  # that the model may move in a round: root of the mean square of its numbers
    secure: bool = False  # totals leave masked only
    losses: bool | None = None  # whether its own loss and scores are told; None: unless `secure`
    least_cohort: int = Field(1, ge=1)  # sites that a run, and a masked sum, must be over
    baseline: bool = True  # whether it tells how well a model of its own rows alone would do
    moments: bool = True  # whether it tells second moments of its inputs, masked or not
    folds: bool = True  # whether it tells what folds of its rows lose by models without them
    threshold: int | None = Field(None, ge=2)  # sites that have to help to read another's part; None: all but one
    most_weight: float = Field(0.95, gt=0, le=1)  # that any site may count for in a masked sum
    same_sites: bool = False  # all masked sums of a run are over the same sites; one that is lost stops it
    epsilon: float | None = Field(None, gt=0)  # the budget of all runs together, see docs/privacy.md
    delta: float = Field(1e-5, gt=0, lt=1)
    outside_budget: tuple[Literal["statistics", "evaluation"], ...] = ()  # told though no noise covers it
    rounds: int = Field(10_000, ge=1)  # of a run, at most
    runs: int = Field(20, ge=1)  # of one configuration; every further approval is for as many again
    bytes: int | None = Field(None, ge=1)  # that leave for one configuration; None: what its rounds come to
    modules: tuple[str, ...] = ()  # ClientApps that a server may name besides Equipoise's own; nothing else is imported

    @property
    def tells_losses(self) -> bool:
        """Its own, to the server: unless it is said, not where masks are asked for."""
        return not self.secure if self.losses is None else self.losses

    @property
    def limits(self) -> Limits:
        """What it asks of masked sums."""
        return Limits(self.threshold, self.most_weight, self.same_sites)


class Plan(NamedTuple):
    """What a run would do, as far as a policy is about it."""

    digest: str  # of its whole configuration
    algorithm: str
    sites: int
    secure: bool
    tells_losses: bool  # of single sites, in training or when a model is evaluated
    label: str
    batch: int | None  # rows of a local step; None: all
    epsilon: float | None  # None: no differential privacy
    delta: float | None
    tells_baseline: bool = False  # the loss of a model of its own rows alone
    tells_moments: bool = False  # second moments of its inputs, for a metric
    tells_folds: bool = False  # what folds of its rows lose, along a path of penalties
    rounds: int = 1


def digest_of(configuration: str) -> str:
    """Of a configuration, as TOML."""
    return hashlib.sha256(configuration.encode()).hexdigest()


def load(path: Path) -> Policy:
    """The policy of a file; that of a site without one is the default, which asks."""
    if not path.is_file():
        return Policy()
    return _parsed(read_text(path), str(path))


@lru_cache(maxsize=64)
def _parsed(text: str, source: str) -> Policy:
    """Read before every answer, and parsed when it has changed."""
    try:
        return validated(tomllib.loads(text), source)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{source} is not TOML: {error}") from None


def validated(given: Mapping[str, object], source: str) -> Policy:
    try:
        return Policy.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise InputError(f"{source}: {where}: {first['msg']}; see docs/privacy.md") from None


def approved_here(folder: Path) -> set[str]:
    return _lines(folder / APPROVED)


def approvals(folder: Path, digest: str) -> int:
    """How often a configuration was approved here."""
    path = folder / APPROVED
    return read_text(path).split().count(digest) if path.is_file() else 0


def approve(folder: Path, digest: str) -> None:
    """Adds to the list, whatever the last line of it looks like; what was stopped goes on."""
    stopped = _lines(folder / STOPPED) - {digest}
    if (folder / STOPPED).is_file():
        write_whole(folder / STOPPED, "".join(f"{d}\n" for d in sorted(stopped)))
    _add(folder / APPROVED, digest)


def stop(folder: Path, digest: str) -> None:
    """Nothing of this configuration is answered any more, until it is approved again."""
    _add(folder / STOPPED, digest)


def stopped_here(folder: Path) -> set[str]:
    return _lines(folder / STOPPED)


def _lines(path: Path) -> set[str]:
    return set(read_text(path).split()) if path.is_file() else set()


def _add(path: Path, digest: str) -> None:
    before = read_text(path) if path.is_file() else ""
    append(path, ("" if before.endswith("\n") or not before else "\n") + digest + "\n")


def trial(folder: Path) -> None:
    """A policy for a site whose rows are on the server's own machine, unless it has one."""
    if not (folder / FILE).is_file():
        make_folder(folder)
        write_whole(folder / FILE, TRIAL)


def check(policy: Policy, plan: Plan, also_approved: set[str], stopped: Collection[str] = ()) -> None:
    """A Refusal unless the plan is one that the site agrees to."""
    refuse_unless(
        plan.digest not in stopped,
        "this site has stopped this run, see its log; it takes part again once its owner has given "
        f"`equipoise flower approve {plan.digest[:16]}`",
    )
    refuse_unless(
        not policy.ask or plan.digest in {*policy.approved, *also_approved},
        f"this configuration {NOT_APPROVED}: `equipoise flower approve {plan.digest[:16]}` shows what it would reveal",
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
        policy.tells_losses or not plan.tells_losses,
        "this site tells its own loss and scores to nobody; use scaffpd_sums or fedavg with federation.secure = true",
    )
    refuse_unless(
        policy.baseline or not plan.tells_baseline,
        "this site tells nobody how well a model of its own would do; set objective.of = 'losses'",
    )
    refuse_unless(
        policy.moments or not plan.tells_moments,
        "this site tells nobody the second moments of its inputs; set model.metric = 'none'",
    )
    refuse_unless(
        policy.folds or not plan.tells_folds,
        "this site tells nobody what folds of its rows lose; give numbers, such as model.l2 = 0.01 and objective.rho = "
        "0.1",
    )
    refuse_unless(
        policy.label is None or plan.label == policy.label,
        f"the label of this site is '{policy.label}'; set data.label",
    )
    refuse_unless(
        plan.batch is None or plan.batch >= policy.min_rows,
        f"a local step would be on {plan.batch} rows, and this site tells nothing of fewer than {policy.min_rows}; set "
        f"model.batch = {policy.min_rows} or more",
    )
    refuse_unless(
        plan.rounds <= policy.rounds,
        f"this site takes part in runs of {policy.rounds} rounds at most, not {plan.rounds}; set run.rounds",
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


class Query(NamedTuple):
    """A question to the owner of a site, and the key of site.toml that its answer is."""

    key: str
    words: str
    default: str


QUESTIONS = (
    Query("ask", "Ask me before every new run? (yes, no)", "yes"),
    Query("label", "The only column that may be predicted (empty: any)", ""),
    Query("columns", "The only columns that may be read besides, with commas (empty: all)", ""),
    Query("min_rows", "Rows that stand behind everything that is told, at least", "20"),
    Query("min_count", "Rows that a text or a class has at least before it is told", "10"),
    Query("secure", "Send sums masked only, and no loss of this site? (yes, no)", "yes"),
    Query("least_cohort", "Sites that a run is over, at least", "3"),
    Query("epsilon", "A budget of differential privacy for all runs together, epsilon (empty: none)", ""),
)


def written(answers: Sequence[tuple[Query, str]]) -> str:
    """The answers as a file; an answer that makes no sense is an InputError."""
    lines = []
    for (key, words, _), given in answers:
        answer = given.strip()
        if not answer:
            continue
        value: Any = answer
        if words.endswith("(yes, no)"):
            require(answer.lower() in ("yes", "no", "y", "n"), f"{key}: the answer is {answer!r}; say yes or no")
            value = answer.lower().startswith("y")
        elif key == "columns":
            value = [name.strip() for name in answer.split(",") if name.strip()]
        elif key != "label":
            try:
                value = float(answer) if key == "epsilon" else int(answer)
            except ValueError:
                raise InputError(f"{key}: the answer is {answer!r}; give a number") from None
        lines.append(f"# {words}\n{tomli_w.dumps({key: value})}")
    text = "".join(lines)
    validated(tomllib.loads(text), "the answers")
    return text
