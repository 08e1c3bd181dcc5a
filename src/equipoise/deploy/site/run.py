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

import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from flwr.app import Context
from pydantic import Field

from equipoise._jax import keep_programs
from equipoise.data import silos
from equipoise.data.shards import OwnerRows, Shards, stack
from equipoise.data.silos import Site
from equipoise.data.silos.encoding import Encoding
from equipoise.deploy import agreement
from equipoise.deploy.agreement import Agreement, Setup
from equipoise.deploy.site.app import site_name
from equipoise.deploy.site.messages import Participant
from equipoise.deploy.site.oversight import overseen
from equipoise.deploy.site.owner import (
    Counts,
    check_rows,
    check_shares,
    counts_of,
    encoded,
    options_of,
    overseen_jobs,
    own_key,
    table_digest,
    told_statistics,
    visible,
    with_kept_split,
)
from equipoise.deploy.site.training import kept_features, planned, read_agreement, rows_site
from equipoise.deploy.wire.secure import SecureSite
from equipoise.errors import InputError, not_none, require
from equipoise.experiment.config import Config
from equipoise.experiment.convexify import feature_maker
from equipoise.experiment.problems import Problem, precision
from equipoise.experiment.records import JsonRecord
from equipoise.privacy import identity, policy
from equipoise.privacy.policy import Policy
from equipoise.privacy.site_masks import SiteMasks

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

    signer = identity.signer(Path(str(node["key"]))) if node.get("key") else None

    def rules() -> Policy:
        return policy.load(file)

    def draws(run: str, words: list[int]) -> list[int]:
        return own_key(folder, rules(), run, words)

    if config.model.name == "torch":
        module = _open_module_site(config, name, node, folder)
        jobs = overseen_jobs(module.jobs, config, name, rules, None)
        guard = overseen(config, folder, file, no_counts, signer)
        return module._replace(jobs=jobs, secure=secure, guard=guard, own_key=draws)
    path = Path(str(node.get("data", "")))

    @cache
    def read_version(version: Any, columns: Any) -> tuple[Site, str]:
        site = read(config, name, node, rules())
        return site, table_digest(path if path.is_file() else None, site.frame)

    def read_now() -> tuple[Site, str]:
        """The table, read once, and again when the file has changed."""
        version = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None
        return read_version(version, rules().columns)

    def current_rows() -> Site:
        site, table = read_now()
        return with_kept_split(site, config, folder, rules(), table)

    def rows(agreed: Agreement) -> OwnerRows:
        now = rules()
        site = current_rows()
        check_shares(now, config, name, dict(zip(agreed.sites, agreed.train, strict=True)), counts_of(site).train)
        train, test = encoded(site, Encoding.from_json(agreed.encoding), config, now)
        check_rows(now, config, name, train=len(train[1]))
        return OwnerRows(_shard(*train), _shard(*(test or train)))

    def features(agreed: Agreement) -> OwnerRows:
        mine, problem = rows(agreed), agreement.network_problem(config, agreed)
        of = [config.toml(), not_none(agreed.network).theta, *(np.asarray(a) for part in mine for a in part)]

        def make() -> OwnerRows:
            make_features = feature_maker(config, problem.model, agreement.network_params(config, agreed, problem))
            return OwnerRows(*(make_features(Shards(*(a[None] for a in part))).client(0) for part in mine))

        return kept_features(folder, of, make)

    def setup(agreed: Agreement) -> Setup:
        return planned(config.toml(), agreed.model_dump_json())

    def statistics(_: str) -> str:
        site, now = current_rows(), rules()
        counts = counts_of(site)
        check_rows(now, config, name, train=counts.train)
        found = told_statistics(site, config, folder, now)
        answer = SiteStatistics(statistics=found, train=counts.train, test=counts.test, counted=site.counted)
        return answer.model_dump_json()

    def trained() -> Problem:
        return setup(read_agreement(folder, name)).problem

    jobs, accept_agreement, baseline = rows_site(config, name, folder, rows, features, setup)
    answers = {"statistics": statistics, "agreement": accept_agreement, "baseline": baseline}
    guard = overseen(config, folder, file, lambda: counts_of(read_now()[0]), signer)
    overseen_parts = overseen_jobs(jobs, config, name, rules, trained)
    return Participant(name, folder, overseen_parts, answers, lambda: precision(config), secure, guard, draws)


def no_counts() -> Counts:
    raise InputError("the rows of this run are PyTorch's")


def policy_file(node: Mapping[str, Any], folder: Path) -> Path:
    return Path(str(node["policy"])) if node.get("policy") else folder / policy.FILE


def secure_site(config: Config, name: str, node: Mapping[str, Any], folder: Path) -> SecureSite | None:
    """The site's part in masked sums, where the run has them."""
    if config.federation is None or not config.federation.secure:
        return None
    key, roster = (Path(str(_given(node, word, "keys: masked sums need authentication"))) for word in ("key", "roster"))

    def rules() -> Policy:
        return policy.load(policy_file(node, folder))

    known = identity.load(name, key, roster)
    own = SiteMasks(known, folder, lambda: rules().least_cohort, lambda: rules().limits)
    return SecureSite(own, config.federation.secure_bound)


def _open_module_site(config: Config, name: str, node: Mapping[str, Any], folder: Path) -> Participant:
    require(
        importlib.util.find_spec("torch") is not None,
        "the model of this run is a PyTorch module, which needs one more package: pip install 'equipoise[torch]'",
    )
    from equipoise.pytorch.run import open_module_site

    return open_module_site(config, name, node, folder)


def settings(run_config: Mapping[str, Any]) -> Config:
    """The run's configuration, as the server put it into Flower's."""
    text = run_config.get("settings")
    require(isinstance(text, str), "this run has no settings; start it with `equipoise flower server`")
    return agreement.settings(str(text))


def read(config: Config, name: str, node: Mapping[str, Any], rules: Policy = OPEN) -> Site:
    """The site's table, split as the run asks."""
    options = options_of(config, rules)
    split: dict[str, Any] = {"name": name, "test": config.data.test, "seed": config.run.seed}
    if "loader" not in node:
        path = str(_given(node, "data", "its file, or loader='module:function'"))
        frame = visible(silos.scan(Path(path), label=options.label, separator=config.data.separator), config, rules)
        return silos.site_of(frame, options, file=f"{name} ({Path(path).name})", **split)
    where = str(node["loader"])
    found = own_function(where, str(node.get("path", "")))()
    if isinstance(found, pl.DataFrame | pl.LazyFrame):
        frame = found.lazy()
    else:
        require(isinstance(found, tuple) and len(found) == 2, f"{where} gives neither (inputs, labels) nor a table")
        inputs, labels = map(np.asarray, found)
        frame = silos.frame_of(inputs, labels, config.data.label, file=name)
    return silos.site_of(visible(frame, config, rules), options, file=f"{name} ({where})", **split)


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


def _given(node: Mapping[str, Any], key: str, what: str) -> Any:
    require(node.get(key), f"this node's configuration has no {key}; give it {what}: --node-config \"{key}='...'\"")
    return node[key]
