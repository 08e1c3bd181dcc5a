"""A site: its own rows, read from its own file or by its own function, and nothing that sends them anywhere.

Where they are stands in the node's configuration, which is the site's own:

    site    its name
    folder  where it keeps what it must not forget between two messages
    data    its file, .csv, .parquet or .npz; or
    loader  "module:function": a function without arguments that returns (inputs, labels), as arrays or tensors, or a
            Polars frame; `path` may say where the module is
    torch   "module:function", where the model is a PyTorch module (`equipoise.pytorch`)
    compiled  a folder for compiled programs, for the next process
    policy  what it agrees to, a file; default: site.toml in its folder
    key, roster  its private key, and a folder with the public ones of all sites: for masked sums
"""

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from flwr.app import Context
from jax.typing import DTypeLike
from jaxtyping import PyTree
from pydantic import Field

from equipoise import algorithms, steps, tensors
from equipoise._jax import keep_programs
from equipoise.algorithms.moments import moments
from equipoise.algorithms.second_moments import second_moments
from equipoise.cohorts import everyone
from equipoise.data import silos
from equipoise.data.shards import OwnerRows, Shards, stack
from equipoise.data.silos import Site
from equipoise.data.silos.encoding import Encoding
from equipoise.deploy import agreement
from equipoise.deploy.agreement import Agreement, Setup
from equipoise.deploy.site import owner
from equipoise.deploy.site.messages import Job, Participant, client_app, forget_old, site_name
from equipoise.deploy.site.oversight import overseen, rejected
from equipoise.deploy.wire.messages import NAME, NOT_TOLD, of_run, refuse_unless
from equipoise.deploy.wire.secure import SecureSite
from equipoise.errors import InputError, needs, not_none, require
from equipoise.experiment import records
from equipoise.experiment.chosen import settle
from equipoise.experiment.chosen.folds import row_of
from equipoise.experiment.chosen.penalty import scaled as penalty_of
from equipoise.experiment.config import Config
from equipoise.experiment.convexify.stages import feature_maker, scaled
from equipoise.experiment.personal.baselines import own_loss
from equipoise.experiment.problems import Problem, precision
from equipoise.experiment.records import JsonRecord
from equipoise.experiment.results import save_model
from equipoise.files import write_whole
from equipoise.privacy import identity, policy
from equipoise.privacy.noise import own_noise
from equipoise.privacy.policy import Policy
from equipoise.privacy.site_masks import SiteMasks
from equipoise.protocol import Algorithm, Data, Vector
from equipoise.tasks import WithBaseline

QUESTIONS = ("statistics", "agreement", "baseline")
OPEN = Policy(min_rows=1, min_count=1)  # of a table that is looked at where nothing leaves


class SiteStatistics(JsonRecord):
    """A site's answer to `statistics`."""

    statistics: str  # as JSON
    train: int = Field(ge=1, lt=2**31)  # rows
    test: int = Field(ge=0, lt=2**31)
    counted: float | None = Field(None, ge=1)  # with data.unit: as how many independent rows the scored ones count


def open_site(context: Context) -> Participant:
    """The site that a node's configuration names, in the run that the server has configured."""
    config = settings(context.run_config)
    name, node = site_name(context), context.node_config
    folder = Path(str(_given(node, "folder", "a folder of its own")))
    if "compiled" in node:
        keep_programs(Path(str(node["compiled"])))
    secure, file = secure_site(config, name, node, folder), policy_file(node, folder)

    signer = identity.signer_of(node)

    def rules() -> Policy:
        return policy.load(file)

    def draws(run: str, words: list[int]) -> list[int]:
        return owner.own_key(folder, rules(), run, words)

    if config.model.name == "torch":
        with needs("torch", "runs whose model is a PyTorch module"):
            from equipoise.pytorch.run import open_module_site

        module = open_module_site(config, name, node, folder)
        jobs = owner.overseen_jobs(module.jobs, config, name, rules, None)
        guard = overseen(config, folder, file, no_rows, signer)
        return module._replace(jobs=jobs, secure=secure, guard=guard, own_key=draws)
    path = Path(str(node.get("data", "")))

    @cache
    def read_version(version: object, columns: object) -> tuple[Site, str]:
        site = read(config, name, node, rules())
        return site, owner.table_digest(path if path.is_file() else None, site.frame)

    def read_now() -> tuple[Site, str]:
        """The table, read once, and again when the file has changed."""
        version = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None
        return read_version(version, rules().columns)

    def current_rows() -> Site:
        site, table = read_now()
        return owner.with_kept_split(site, config, folder, rules(), table)

    def encoded(agreed: Agreement) -> owner.Encoded:
        now = rules()
        site = current_rows()
        owner.check_shares(now, config, name, rows_of_all(agreed), owner.counts_of(site).train)
        mine = owner.encoded(site, Encoding.from_json(agreed.encoding), config, now)
        owner.check_rows(now, config, name, train=len(mine.train[1]))
        return mine

    def rows(agreed: Agreement) -> OwnerRows:
        train, test, _ = encoded(agreed)
        return OwnerRows(_shard(*train), _shard(*(test or train)))

    def unit(agreed: Agreement) -> np.ndarray | None:
        return encoded(agreed).unit

    def features(agreed: Agreement) -> OwnerRows:
        mine, problem = rows(agreed), agreement.network_problem(config, agreed)
        made_of = [config.toml(), not_none(agreed.network).theta, *(np.asarray(a) for part in mine for a in part)]

        def make() -> OwnerRows:
            make_features = feature_maker(config, problem.model, agreement.network_params(config, agreed, problem))
            return OwnerRows(*(make_features(Shards(*(a[None] for a in part))).client(0) for part in mine))

        return kept_features(folder, made_of, make)

    def setup(agreed: Agreement) -> Setup:
        return agreement.setup(agreement.stage(config, agreed), agreed, draw=own_noise)

    def statistics(_: str) -> str:
        site, now = current_rows(), rules()
        counts = owner.counts_of(site)
        owner.check_rows(now, config, name, train=counts.train)
        text = owner.told_statistics(site, config, folder, now)
        answer = SiteStatistics(statistics=text, train=counts.train, test=counts.test, counted=site.counted)
        return answer.model_dump_json()

    def trained() -> Problem:
        return setup(read_agreement(folder, name)).problem

    site = RowsSite(config, name, folder, rows, features, setup, unit)
    guard = overseen(config, folder, file, lambda: owner.counts_of(read_now()[0]), signer)
    overseen_parts = owner.overseen_jobs(site.jobs, config, name, rules, trained)
    answers = {"statistics": statistics, **site.answers}
    return Participant(name, folder, overseen_parts, answers, lambda: precision(config), secure, guard, draws)


def rows_of_all(agreed: Agreement) -> dict[str, int]:
    """That they train on, by site."""
    return dict(zip(agreed.sites, agreed.train, strict=True))


def no_rows(*_: object) -> NoReturn:
    raise InputError("the rows of this run are PyTorch's")


def policy_file(node: Mapping[str, object], folder: Path) -> Path:
    return Path(str(node["policy"])) if node.get("policy") else folder / policy.FILE


def secure_site(config: Config, name: str, node: Mapping[str, object], folder: Path) -> SecureSite | None:
    """The site's part in masked sums, where the run has them."""
    if config.federation is None or not config.federation.secure:
        return None
    key, roster = (Path(str(_given(node, word, "keys: masked sums need authentication"))) for word in ("key", "roster"))

    def rules() -> Policy:
        return policy.load(policy_file(node, folder))

    identities = identity.load(name, key, roster)
    own = SiteMasks(identities, folder, lambda: rules().least_cohort, lambda: rules().limits)
    return SecureSite(own, config.federation.secure_bound)


def settings(run_config: Mapping[str, object]) -> Config:
    """The run's configuration, as the server put it into Flower's."""
    text = run_config.get("settings")
    require(isinstance(text, str), "this run has no settings; start it with `equipoise flower server`")
    return agreement.settings(str(text))


def read(config: Config, name: str, node: Mapping[str, object], rules: Policy = OPEN) -> Site:
    """The site's table, split as the run asks."""
    options = owner.options_of(config, rules)
    split: dict[str, Any] = {"name": name, "test": config.data.test, "seed": config.run.seed}
    if "loader" not in node:
        path = str(_given(node, "data", "its file, or loader='module:function'"))
        frame = owner.visible(
            silos.scan(Path(path), label=options.label, separator=config.data.separator), config, rules
        )
        return silos.site_of(frame, options, file=f"{name} ({Path(path).name})", **split)
    where = str(node["loader"])
    rows = own_function(where, str(node.get("path", "")))()
    if isinstance(rows, pl.DataFrame | pl.LazyFrame):
        frame = rows.lazy()
    else:
        require(isinstance(rows, tuple) and len(rows) == 2, f"{where} gives neither (inputs, labels) nor a table")
        inputs, labels = map(np.asarray, rows)
        frame = silos.frame_of(inputs, labels, config.data.label, file=name)
    return silos.site_of(owner.visible(frame, config, rules), options, file=f"{name} ({where})", **split)


def own_function(where: str, path: str) -> Callable[..., Any]:
    """A function of the site's own, by the name that its own configuration gives."""
    module, colon, function = where.partition(":")
    require(module and colon and function, f"the function is '{where}'; give module:function")
    if path and path not in sys.path:
        sys.path.insert(0, path)
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"'{where}' cannot be imported ({error}); say path='...' for where it is") from error


def _shard(inputs: np.ndarray, labels: np.ndarray) -> Shards:
    return stack([(inputs, labels)]).client(0)


def _given(node: Mapping[str, object], key: str, what: str) -> Any:
    require(node.get(key), f"this node's configuration has no {key}; give it {what}: --node-config \"{key}='...'\"")
    return node[key]


AGREEMENTS = "agreements"  # a folder with a file for each of the last runs
FEATURES = "features.safetensors"  # of the site's own rows; it stays there
BASELINE = "baseline.json"  # the loss of its own model
OWN_MODEL = "own-model.safetensors"  # for `equipoise predict`; it leaves the site with nobody's message


class RowsSite(NamedTuple):
    """A site's part in a run that trains on its rows, or on features of them."""

    config: Config
    name: str
    folder: Path
    rows: Callable[[Agreement], OwnerRows]  # the site's own
    features: Callable[[Agreement], OwnerRows]  # what it makes of them, not scaled
    setup: Callable[[Agreement], Setup]  # of the agreed stage
    unit: Callable[[Agreement], np.ndarray | None] = lambda agreed: None  # whose each of its training rows is

    @property
    def jobs(self) -> dict[str, Callable[[], Job]]:
        """By the part of the run."""
        config, jobs = self.config, {"train": self.train, "evaluate": self.evaluate}
        jobs |= {} if config.model.own == "none" else {"own": self.own}
        jobs |= {} if config.own_models is None else {"personal": self.personal}
        jobs |= {} if config.convexify is None else {"moments": self.sums}
        jobs |= {"path": self.path} if settle.by_folds(config) else {}
        return jobs | ({"metric": self.moments_of_inputs} if agreement.tells_moments(config) else {})

    @property
    def answers(self) -> dict[str, Callable[[str], str]]:
        """By the question."""
        return {"agreement": self.accept_agreement, "baseline": self.tell_baseline}

    def agreed(self) -> Agreement:
        return read_agreement(self.folder, self.name)

    def trained_on(self, agreed: Agreement) -> OwnerRows:
        if agreed.network is None or agreed.network.mean is None:
            return self.rows(agreed)
        made = self.features(agreed)
        scaling = agreement.scaling_of(self.config, agreed, made.train.inputs.shape[1])
        return OwnerRows(*(scaled(part, scaling) for part in made))

    def baseline(self, agreed: Agreement) -> float:
        """The loss of its own model, found once: it stands in the site's folder."""
        problem, shard = self.setup(agreed).problem, self.trained_on(agreed).train

        def find() -> float:
            return own_loss(problem.plain_task, problem.convex, problem.x, jax.tree.map(jnp.asarray, shard))

        return kept_number(self.folder / BASELINE, [self.config.toml(), *(np.asarray(a) for a in shard)], find)

    def compared(self, agreed: Agreement, rows: OwnerRows) -> OwnerRows:
        """With what only the site knows, where it weighs itself."""
        weighs_itself = algorithms.named(self.config.algorithm.name).weighs_itself
        if not (agreement.looks_at_gains(self.config) and weighs_itself):
            return rows
        loss = jnp.asarray(self.baseline(agreed), self.setup(agreed).problem.x.dtype)
        return rows._replace(train=WithBaseline(rows.train, loss))

    def train(self) -> Job:
        agreed = self.agreed()
        now, rows = self.setup(agreed), self.trained_on(agreed)
        rows = self.compared(agreed, rows._replace(train=now.problem.shard_in_metric(rows.train)))
        counted = rows_of_all(agreed) if owner.rows_count(agreement.stage(self.config, agreed)) else None
        return Job(now.algorithm, now.problem.x, rows.train, config=now.digest, counted=counted)

    def evaluate(self) -> Job:
        agreed = self.agreed()
        now, rows = self.setup(agreed), self.trained_on(agreed)
        rows = rows if now.sums is None else self.compared(agreed, rows)
        return Job(now.scoring, now.problem.x, rows, config=now.digest)

    def save(self, problem: Problem, x: Vector, part: PyTree) -> None:
        """The site's own model, for `equipoise predict`."""
        save_model(self.folder / OWN_MODEL, problem, x, {"site": self.name, "config": self.config.used()}, part)

    def own(self) -> Job:
        agreed = self.agreed()
        now = self.setup(agreed)
        algorithm = not_none(now.own, "no part of this model is the sites' own")

        def save(message: PyTree, part: PyTree) -> None:
            self.save(now.problem, message.x, part)

        return Job(algorithm, now.problem.x, self.trained_on(agreed).train, config=now.digest, then=save)

    def personal(self) -> Job:
        agreed = self.agreed()
        now = self.setup(agreed)
        algorithm = not_none(now.personal, "this run makes no models of the sites' own")

        def save(message: PyTree, x: Vector) -> None:
            fits, part = now.problem.plain_task.own, None
            if fits is not None:
                part = fits.fit(jnp.asarray(x), jax.tree.map(jnp.asarray, self.trained_on(agreed).train))
            self.save(now.problem, x, part)

        return Job(algorithm, now.problem.x, self.trained_on(agreed), config=now.digest, then=save)

    def sums(self) -> Job:
        """Of its features."""
        agreed = self.agreed()
        require(agreed.network is not None, "there is no network yet to make features of")
        made = self.features(agreed).train
        algorithm = moments(made.inputs.shape[1], everyone(len(agreed.sites)))
        return self.exact(agreed, algorithm, made, made.inputs.dtype, counted=rows_of_all(agreed))

    def moments_of_inputs(self) -> Job:
        agreed = self.agreed()
        plan = agreement.metric_plan(agreement.stage(self.config, agreed), agreed)
        linear, rank = not_none(plan, "this run is trained in no metric")
        algorithm = second_moments(linear, everyone(len(agreed.sites)), rank=rank)
        return self.exact(agreed, algorithm, self.trained_on(agreed).train, self.config.run.precision)

    def path(self) -> Job:
        """A point of the path by which folds choose; each message says which."""
        agreed = self.agreed()
        require(agreed.chosen is None, "the path has ended, and what it has chosen is agreed")
        now, config = self.setup(agreed), agreement.stage(self.config, agreed)
        problem, shard = now.problem, self.trained_on(agreed).train
        metric = not_none(problem.conditioning, "the sites have not agreed on a metric yet").metric
        i, penalty = agreed.sites.index(self.name), penalty_of(config, problem)
        row = row_of(problem, shard, i, self.unit(agreed), metric, penalty)
        return Job(agreement.point_of_path(config, agreed), problem.x, row, config=now.digest)

    def exact(self, agreed: Agreement, algorithm: Algorithm, shard: Data, kind: DTypeLike, **options: Any) -> Job:
        """A job before the first round, in double precision whatever that of the run is."""
        digest, x = agreement.digest_of(self.config, agreed), jnp.zeros(algorithm.size, kind)
        return Job(algorithm, x, shard, config=digest, within=lambda: jax.enable_x64(True), **options)

    def accept_agreement(self, text: str) -> str:
        """Remembers what was agreed; answers with this site's curvature and slope where they are asked for."""
        text = whole_agreement(self.folder, self.name, text)
        agreed, answer = Agreement.model_validate_json(text), ""
        if agreed.curvature is None and agreement.needs_curvature(agreement.stage(self.config, agreed), agreed):
            answer = json.dumps(curvature_and_slope(self.config.toml(), text)(self.trained_on(agreed).train))
        elif agreed.network is None:
            self.rows(agreed)  # they fit the encoding
        keep_agreement(self.folder, self.name, text)
        return answer

    def tell_baseline(self, run: str) -> str:
        refuse_unless(NAME.fullmatch(run), "the message names no run that could be kept")
        of_run.set(run)
        require(agreement.needs_baselines(self.config), "this run looks at losses, and nobody needs to know it")
        return json.dumps(self.baseline(self.agreed()))


def digest_of(made_of: list[Any]) -> str:
    digest = hashlib.sha256()
    for part in made_of:
        digest.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    return digest.hexdigest()


def kept_number(path: Path, made_of: list[Any], make: Callable[[], float]) -> float:
    """A number that is found once; `made_of` is all that it depends on."""
    digest = digest_of(made_of)
    if path.is_file():
        with suppress(KeyError, TypeError, ValueError):  # it is damaged, and made again
            saved = json.loads(path.read_text())
            if saved["of"] == digest:
                return float(saved["number"])
    number = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"of": digest, "number": number}))
    return number


def kept_features(folder: Path, made_of: list[Any], make: Callable[[], OwnerRows]) -> OwnerRows:
    """Features that are made once and stand in the site's folder: Flower's own nodes start a process per message.

    `made_of` is all that they depend on, as texts and arrays.
    """
    digest, path = digest_of(made_of), folder / FEATURES
    names = [[f".{part}.{field}" for field in Shards._fields] for part in OwnerRows._fields]
    if path.is_file():
        with suppress(KeyError, TypeError, ValueError):  # it is damaged, and made again
            saved: Any = tensors.read(path)
            if saved.about == digest:
                return OwnerRows(*(Shards(*(saved.arrays[name] for name in part)) for part in names))
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    tensors.write(path, {name: np.asarray(a) for name, a in tensors.named(made)}, digest)
    return made


def read_agreement(folder: Path, name: str) -> Agreement:
    """What the site has been told before the first round."""
    path = agreement_of(folder, of_run.get())
    refuse_unless(path.is_file(), f"'{name}' {NOT_TOLD}; the server tells it again, and it goes on from there")
    return records.read_record(path, Agreement)


def whole_agreement(folder: Path, name: str, text: str) -> str:
    """What was agreed, where the server tells only what is new."""
    message = json.loads(text)
    if "extends" not in message:
        return text
    run = message["extends"]
    refuse_unless(isinstance(run, str) and NAME.fullmatch(run), "the agreement extends no run that could be kept")
    path = agreement_of(folder, run)
    refuse_unless(path.is_file(), f"'{name}' {NOT_TOLD} that this one extends; start the run again")
    return agreement.extended(path.read_text(), message["changes"])


def keep_agreement(folder: Path, name: str, text: str) -> None:
    agreed = Agreement.model_validate_json(text)
    require(name in agreed.sites, f"'{name}' is not one of the sites")
    refuse_unless(NAME.fullmatch(agreed.run), "the agreement names no run that could be kept")
    path = agreement_of(folder, agreed.run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    forget_old(path.parent.glob("*.json"))


def agreement_of(folder: Path, run: str) -> Path:
    """Each run has its own, which no other run can change."""
    return folder / AGREEMENTS / f"{run}.json"


@lru_cache(maxsize=4)
def curvature_and_slope(toml: str, text: str) -> Callable[[Shards], tuple[float, float]]:
    """How the sites of this process measure the largest curvature of their losses and the slopes at the start."""
    agreed = Agreement.model_validate_json(text)
    config = agreement.stage(agreement.settings(toml), agreed)
    problem = agreement.with_agreed_metric(config, agreed, agreement.remote_problem(config, agreed))
    task = problem.trained_task
    x = problem.x if problem.conditioning is None else jnp.zeros_like(problem.x)
    slope = jax.jit(lambda shard: jnp.linalg.norm(task.grad(x, task.prepare(shard))))

    def measure(shard: Shards) -> tuple[float, float]:
        alone = Shards(*(jnp.asarray(a)[None] for a in shard))
        return steps.smoothness(task, problem.in_metric(alone), x), float(slope(problem.shard_in_metric(shard)))

    return measure


client = client_app(open_site, questions=QUESTIONS, rejected=rejected)  # what Flower loads
