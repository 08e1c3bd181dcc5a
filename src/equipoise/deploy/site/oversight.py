"""What stands around every answer of a configured site: its policy before, its own log after, and how often it answers.

An approval covers so many rounds, questions, runs and bytes, which are counted before anything is worked out. How many
rounds a run has, and how often each may be asked for, follows from its configuration, which is what was approved. How
many runs there may be of it stands in site.toml (`runs`); every further approval is for as many again.

    allowance.json   configuration -> what was answered of it
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from equipoise import algorithms, objectives, tasks
from equipoise.data.shards import shard_like
from equipoise.deploy import agreement
from equipoise.deploy.site.messages import forget_old
from equipoise.deploy.site.owner import Counts, behind, stages
from equipoise.deploy.wire.messages import NAME, RECEIPT, read_address
from equipoise.deploy.wire.messages import fields as fields_in
from equipoise.errors import Refusal, StopRun, not_none, refuse_unless, require
from equipoise.experiment import config as configuration
from equipoise.experiment import reading
from equipoise.experiment.chosen import settle
from equipoise.experiment.chosen.walk import FIRST, POINTS
from equipoise.experiment.config import Config
from equipoise.experiment.methods import may_project
from equipoise.experiment.private import costs, promise
from equipoise.experiment.problems import precision
from equipoise.files import locked, make_folder, read_text, write_whole
from equipoise.privacy import audit, identity, policy
from equipoise.privacy.accounting import Budget, spend
from equipoise.privacy.disclosure import fields
from equipoise.privacy.policy import Plan, Policy
from equipoise.privacy.site_masks import MOST_MEMBERS
from equipoise.protocol import Wire, wire_of_rows

Entry = dict[str, Any]  # of the log: what JSON holds
Guard = Callable[[str, RecordDict, Callable[[], RecordDict]], RecordDict]
WAITING = 50  # configurations that wait for approval, at most
FEW = 3  # sites, where a configuration does not say how many
LONGEST = 200  # letters of a name in the log


def sites_of(config: Config) -> int:
    sites = not_none(config.federation).sites
    return sites if isinstance(sites, int) else len(sites)


def plans_of(config: Config) -> list[Plan]:
    """What the policy of a site is about, of every stage of a configuration, which are approved as one."""
    digest = policy.digest_of(config.toml())
    return [plan_of(stage)._replace(digest=digest) for stage in stages(config)]


def plan_of(config: Config) -> Plan:
    """What the policy of a site is about, of one training."""
    private, secure = config.privacy, not_none(config.federation).secure
    tells = any("loss" in fields(w.reply.each) for w in crossing(config)) or not secure
    return Plan(
        digest=policy.digest_of(config.toml()),
        algorithm=config.algorithm.name,
        sites=sites_of(config),
        secure=secure,
        tells_losses=tells,
        tells_baseline=agreement.needs_baselines(config),
        tells_moments=agreement.tells_moments(config),
        tells_folds=settle.by_folds(config),
        label=config.data.label,
        batch=config.batch,
        epsilon=private.epsilon if private else None,
        delta=private.delta if private else None,
        rounds=config.run.rounds,
    )


@cache
def small_task() -> tasks.Task:
    """The same for all configurations, so that what crosses with an algorithm is traced once."""
    return tasks.ridge(3, 0.1)


def crossing(config: Config) -> list[Wire]:
    """What the algorithm of a configuration sends, by name: of a small problem, as the sizes are not known yet.

    Updates count as projected, and so as seen one by one, where that depends on the rows.
    """
    federation = not_none(config.federation)
    n = min(max(sites_of(config), FEW), MOST_MEMBERS)  # whatever the server says: names do not depend on it
    record, task = algorithms.named(config.algorithm.name), small_task()
    settings = config.objective.model_dump(exclude_none=True, exclude={"of", "price"})
    dual = objectives.named(settings.pop("name"))(n, **settings)
    with precision(config):
        algorithm = record.build_example(task, dual)
        x = jax.eval_shape(lambda: jax.numpy.zeros(3))
        like = shard_like((3,), x.dtype, (), x.dtype)
        if may_project(config):
            algorithm = algorithms.project_updates(algorithm, quadratic=True)
        wires = wire_of_rows(algorithm, x, like)
        if federation.compress is None:
            return wires
        algorithm = algorithms.compress_replies(
            algorithm, wires, dtype=federation.compress, sums=federation.compress_sums
        )
        return wire_of_rows(algorithm, x, like)


def would_reveal(config: Config) -> tuple[str, ...]:
    """What a run would reveal of a site, in plain words, for whoever approves it."""
    if config.privacy is None:
        # No limit of a site prevents it: gradients at models that hardly differ, differ by the rows in between.
        seen = "sums of the sites' answers" if not_none(config.federation).secure else "a site's answers"
        about_rows = (
            "a server that sends models of its own making, not those that training leads to, can work out single rows "
            f"from {seen}; limits of site.toml make it harder, and noise ([privacy]) alone bounds it"
        )
    else:
        about_rows = promise(config)
    sentences = [about_rows]
    for stage in stages(config):
        own_models, own_parts, n = stage.own_models is not None, stage.model.own != "none", sites_of(stage)
        moments, sent = agreement.tells_moments(stage), crossing(stage)
        sentences += agreement.disclosures(
            stage, sent, n=n, own_models=own_models, own_parts=own_parts, moments=moments
        )
    return tuple(dict.fromkeys(sentences))


def overseen(
    config: Config, folder: Path, file: Path, count: Callable[[], Counts], signer: audit.Signer | None = None
) -> Guard:
    """Looks at the policy of `file` before each answer and writes each into the log of `folder`.

    `count` are the rows of the site, which its owner is told who is asked for approval.
    """
    plans = plans_of(config)
    digest = plans[0].digest

    @cache
    def rows() -> Entry:
        """How many of the site's stand behind its answers."""
        with suppress(Exception):  # those of a module are its own
            return {"rows": count()._asdict()}
        return {}

    def keep_waiting() -> None:
        """What was refused, so that its owner can look at it, with the rows behind it, and approve it."""
        place = folder / policy.PENDING
        make_folder(place)
        write_whole(place / f"{digest}.toml", config.toml())
        if not (place / f"{digest}.json").is_file():
            with suppress(Exception):  # the table cannot be read so; the owner is told without
                write_whole(place / f"{digest}.json", json.dumps(count()))
        for kind in ("*.toml", "*.json"):
            forget_old(place.glob(kind), WAITING)

    def guard(kind: str, content: RecordDict, answer: Callable[[], RecordDict]) -> RecordDict:
        entry: Entry = {"kind": kind, "plan": digest, **asked(content)}
        try:
            rules = policy.load(file)
            try:
                for plan in plans:
                    policy.check(rules, plan, policy.approved_here(folder), policy.stopped_here(folder))
                allow(folder, digest, policy.approvals(folder, digest), config, rules, kind, content)
            except Refusal:
                keep_waiting()
                raise
            account(config, rules, folder, kind, content)
            reply = answer()
            size = described(reply)["bytes"]
            if rules.bytes is not None:
                with _counted(folder, digest) as covered:
                    refuse_unless(
                        covered["bytes"] + size <= rules.bytes,
                        f"with this reply this site would have sent more than {rules.bytes} bytes for this "
                        "configuration (its site.toml)",
                    )
                    covered["bytes"] += size
        except Exception as error:
            if isinstance(error, StopRun):
                policy.stop(folder, digest)
            refused = {"answer": "refused", "why": str(error)}
            failed = {"answer": "failed", "why": type(error).__name__}
            audit.record(folder, entry | (refused if isinstance(error, Refusal) else failed), signer)
            raise
        receipt = audit.record(folder, {**entry, "answer": "replied", **described(reply), **rows()}, signer)
        reply[RECEIPT] = ConfigRecord(receipt._asdict())
        return reply

    return guard


def rejected(context: Context, kind: str, error: Exception) -> None:
    """Writes down a message that no answer was even begun to, such as one of a run whose settings make no sense."""
    node = context.node_config
    if node.get("folder"):
        why = str(error) if isinstance(error, Refusal) else type(error).__name__
        entry = {"kind": kind, "answer": "rejected", "why": short(why)}
        audit.record(Path(str(node["folder"])), entry, identity.signer_of(node))


def rows_behind(folder: Path, digest: str, config: Config) -> tuple[str, ...]:
    """How many of the site's rows stand behind each answer of a configuration that waits for approval."""
    path = folder / policy.PENDING / f"{digest}.json"
    if not path.is_file():
        return ("how many rows stand behind each answer is not known: the table could not be read as this run asks",)
    return behind(Counts(*json.loads(read_text(path))), config.batch)


def account(config: Config, rules: policy.Policy, folder: Path, kind: str, content: RecordDict) -> None:
    """Counts a reply that is about to be made, or refuses it; what no noise covers is refused under a budget."""
    where = fields_in(content, "at") or {}
    training = kind == "exchange" and where.get("part") == "train"
    if rules.epsilon is not None:
        what = "statistics" if kind == "statistics" else "evaluation" if kind == "exchange" and not training else ""
        refuse_unless(
            not what or what in rules.outside_budget,
            f"this site has a budget of privacy, which does not cover {what}; its site.toml may allow it: "
            f'outside_budget = ["{what}"]',
        )
    if config.privacy is not None and training:
        cost, run = costs(config).get(str(where.get("exchange")), 0.0), where.get("run")
        if not isinstance(run, str):
            raise Refusal("the message names no run")
        site = None if rules.epsilon is None else Budget(rules.epsilon, rules.delta)
        if cost:
            spend(folder, run, cost, Budget(config.privacy.epsilon, config.privacy.delta), site)


def pending(folder: Path, digest: str) -> tuple[str, Config]:
    """The configuration that waits for approval and begins with that digest: its whole digest, and what it says."""
    waiting = sorted((folder / policy.PENDING).glob("*.toml"))
    matching = [path for path in waiting if path.stem.startswith(digest)] if len(digest) >= 6 else []
    require(
        len(matching) == 1,
        f"{len(matching)} configurations that wait at {folder} begin with '{digest}'; give six letters or more of "
        f"one of: {', '.join(path.stem[:16] for path in waiting) or 'none'}",
    )
    config = configuration.parse(reading.read(matching[0]), source=str(matching[0]), own_code=False)
    require(policy.digest_of(config.toml()) == matching[0].stem, f"{matching[0]} was changed; it is not approved")
    return matching[0].stem, config


def asked(content: RecordDict) -> Entry:
    """A message for the log, without its arrays."""
    entry: Entry = {}
    where = fields_in(content, "at")
    if where is not None:
        entry |= {key: short(where.get(key)) for key in ("part", "run", "attempt", "round", "exchange")}
    for name in ("question", "mask"):
        record = fields_in(content, name)
        if record is not None:
            keys = ("step", "run", "batch", "exchange", "members", "answered", "missing")
            entry[name] = {key: short(record[key]) for key in keys if key in record}
    return entry


def short(value: object) -> Any:
    """What a server has sent, shortened so that the log does not fill the disk."""
    if isinstance(value, list):
        return [short(v) for v in value[:MOST_MEMBERS]]
    return value[:LONGEST] if isinstance(value, str | bytes) else value


def described(reply: RecordDict) -> Entry:
    """A reply for the log: names, sizes and a digest, and none of its numbers."""
    digest, names, size = hashlib.sha256(), [], 0
    for kind, record in sorted(reply.items()):
        if isinstance(record, ArrayRecord):
            for name, array in record.items():
                names.append(f"{name}: {array.dtype}{list(array.shape)}")
                size += len(array.data)
                digest.update(array.data)
        elif isinstance(record, ConfigRecord):
            for key, value in sorted(record.items()):
                names.append(f"{kind}.{key}")
                said = repr(value).encode()
                size += len(said)
                digest.update(said)
    return {"sent": names, "bytes": size, "sha256": digest.hexdigest()}


ALLOWANCE = "allowance.json"
RESTARTS = 20  # times that a server may be started again, and ask for the same once more
STEPS = 4  # questions about the masks of one exchange
EXCHANGES = 16  # of a round, at most
KEPT = 200  # configurations that are remembered
_counting = threading.RLock()


def allow(
    folder: Path, digest: str, approvals: int, config: Config, rules: Policy, kind: str, content: RecordDict
) -> None:
    """Counts a message that is about to be answered; a Refusal, and nothing is counted, beyond what is covered."""
    with _counted(folder, digest) as covered:
        run, what, most = _allowance(config, kind, content)
        allowed = rules.runs * max(approvals, 1)
        if run is None:
            now, most = covered["questions"].get(what, 0) + 1, most * allowed
            refuse_unless(now <= most, f"this site was asked for '{what}' {most} times, which is all that is approved")
            covered["questions"][what] = now
            return
        counts_of_run = covered["runs"].setdefault(run, {})
        refuse_unless(
            len(covered["runs"]) <= allowed,
            f"this site has taken part in {allowed} runs of this configuration; its owner may allow more: `equipoise "
            f"flower approve {digest[:16]}`",
        )
        now = counts_of_run.get(what, 0) + 1
        refuse_unless(
            now <= most and (what in counts_of_run or len(counts_of_run) < 2 * EXCHANGES),
            f"this site has answered '{what}' {most} times in this run, which is all that is approved",
        )
        counts_of_run[what] = now


def _allowance(config: Config, kind: str, content: RecordDict) -> tuple[str | None, str, int]:
    """The run that a message is of, if it says so; what it asks for; and how often it may in one run."""
    tries = not_none(config.federation).tries
    rounds, walks = max(stage.run.rounds for stage in stages(config)), settle.by_folds(config)
    each = tries * rounds + RESTARTS
    if kind == "exchange":
        where = read_address(content)
        last = {"train": rounds, "path": FIRST if walks else 0}.get(where.part, 1)
        refuse_unless(where.round < last, f"round {where.round + 1} was asked for, of {last}")
        if where.part == "path":
            each = tries * (FIRST + POINTS - 1) + RESTARTS
        return where.run, f"{where.part} {where.exchange[:40]}", each
    run = (fields_in(content, "question") or {}).get("run")
    if kind == "secure" and isinstance(run, str) and NAME.fullmatch(run):
        return run, kind, STEPS * EXCHANGES * each
    return None, kind, RESTARTS


@contextmanager
def _counted(folder: Path, digest: str) -> Iterator[dict[str, Any]]:
    """A configuration's counts, written back unless there was a Refusal; the oldest configurations are forgotten."""
    make_folder(folder)
    with _counting, locked(folder / "allowance.lock", f"the counts of {folder.name}", wait=30.0):
        path = folder / ALLOWANCE
        try:
            counts = json.loads(read_text(path)) if path.is_file() else {}
            refuse_unless(isinstance(counts, dict), "")
        except (ValueError, RecursionError, Refusal):
            raise Refusal(
                "what this site has answered so far cannot be read (allowance.json); its owner may delete it"
            ) from None
        yield counts.setdefault(digest, {"runs": {}, "questions": {}, "bytes": 0})
        for old in [*counts][:-KEPT]:
            del counts[old]
        part = path.with_suffix(".part")
        part.write_text(json.dumps(counts))  # not written through: the log of the site is
        os.replace(part, path)
