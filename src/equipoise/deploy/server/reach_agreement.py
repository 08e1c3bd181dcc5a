"""Before the first round: the server gathers the sites, and all of them come to the same agreement.

With [convexify] a network is trained first, a run of its own in `stage.1/` (`run.py`), and `agree_on_features` follows.
The network travels in the agreement, a site makes features of its own rows and keeps them, and one exchange of their
sums is all that they tell: from it the server makes the scaling, which travels in the agreement too.
"""

import json
import math
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.serverapp import Grid
from jax.flatten_util import ravel_pytree
from pydantic import ValidationError

from equipoise.algorithms.first_model import first_model
from equipoise.algorithms.moments import moments, scaling
from equipoise.algorithms.second_moments import metric_from, second_moments
from equipoise.cohorts import everyone
from equipoise.data.silos.agreement import agree
from equipoise.data.silos.statistics import Statistics
from equipoise.deploy import agreement
from equipoise.deploy.agreement import Agreement, NetworkRecord, Setup, as_text
from equipoise.deploy.server.rounds import Demands, Prepared, ask_once, prepare
from equipoise.deploy.server.sites import ConnectedSites, Timeouts, gather
from equipoise.deploy.server.status import StatusWriter
from equipoise.deploy.site.run import SiteStatistics
from equipoise.deploy.wire.secure import SecureSums
from equipoise.errors import EquipoiseError, InputError, not_none, require
from equipoise.experiment import checkpoint, folders, records
from equipoise.experiment.chosen import settle
from equipoise.experiment.chosen.penalty import scaled
from equipoise.experiment.chosen.walk import Point, Walk, judged
from equipoise.experiment.config import Config
from equipoise.experiment.convexify.stages import Trained
from equipoise.experiment.folders import BASELINES
from equipoise.experiment.methods import crossing
from equipoise.files import read_text, write_whole
from equipoise.metric import packed
from equipoise.privacy.disclosure import along_folds, sums_of_features, sums_of_moments
from equipoise.privacy.policy import NOT_APPROVED
from equipoise.protocol import Algorithm, Data, Vector
from equipoise.pytorch.spec import agreed_module

NUMBERS = ("losses", "base")  # of a point of the path, in its file
APPROVAL = (2.0, 30.0)  # seconds between two looks whether a run has been approved, at first and later on


def gather_sites(
    config: Config,
    agreed: Agreement | None,
    grid: Grid,
    status: StatusWriter,
    stock: bool,
    without: tuple[str, ...] = (),
) -> ConnectedSites:
    """Waits for the sites, numbered by name as the files of a folder are."""
    settings = not_none(config.federation)
    timeouts = Timeouts(settings.gather, settings.hello, settings.question, settings.exchange, settings.poll)
    sites = agreed.sites if agreed else None if isinstance(settings.sites, int) else tuple(sorted(settings.sites))
    options: dict[str, Any] = {"n": settings.sites} if sites is None else {"sites": sites}
    require(
        agreed is not None or not without,
        f"{', '.join(without)} cannot be left out before the first round; name the others in federation.sites",
    )
    federation = gather(grid, timeouts=timeouts, observe=status.observe, stock=stock, without=without, **options)
    status.observe({"kind": "started", "transport": federation.transport.about})
    return federation


def reach_agreement(config: Config, federation: ConnectedSites) -> Agreement:
    """From statistics to an encoding that all sites have taken; rows stay where they are."""
    gone = [site for site in federation.sites if site not in federation.nodes]
    require(
        not gone,
        f"{', '.join(gone)} did not come: all sites have to be there when the encoding is agreed; start the missing "
        "ones, or leave them out of federation.sites",
    )
    answers = {site: _statistics(site, text) for site, text in ask_for_statistics(federation).items()}
    reading: dict[str, Any] = {}
    if config.model.name == "torch":
        reading["module"] = agreed_module({site: a.statistics for site, a in answers.items()})
    else:
        statistics = [_statistics_of(site, answer) for site, answer in answers.items()]
        reading["encoding"] = agree(statistics, config.data.silo_options).to_json()
    agreed = Agreement(
        run=f"{int(time.time())}-{secrets.token_hex(4)}",
        sites=federation.sites,
        train=tuple(a.train for a in answers.values()),
        test=tuple(a.test for a in answers.values()),
        counted=None if config.data.unit is None else tuple(_counted(site, a) for site, a in answers.items()),
        **reading,
    )
    agreement.remote_problem(config, agreed)  # what does not fit is said before the sites are asked again
    return send_agreement(config, federation, agreed)


def ask_for_statistics(federation: ConnectedSites) -> dict[str, str]:
    """Every site's statistics; waits for owners who have not approved the run yet as long as for sites to come."""
    end = time.monotonic() + federation.timeouts.gather
    wait, longest = (min(seconds, federation.timeouts.gather / 4) for seconds in APPROVAL)
    while True:
        try:
            return federation.ask("statistics")
        except EquipoiseError as error:
            if NOT_APPROVED not in str(error) or time.monotonic() >= end:
                raise
        time.sleep(wait)
        wait = min(2 * wait, longest)  # every look is a question to all sites, which answer so many and log them


def send_agreement(config: Config, federation: ConnectedSites, agreed: Agreement) -> Agreement:
    """The agreement as all sites have taken it, with the metric and the curvature where the run needs them."""
    agreed = agree_on_metric(config, federation, agreed)
    replies = tell(federation, agreed)
    if agreement.needs_curvature(config, agreed):
        curvatures, slopes = zip(*(_measured(site, text) for site, text in replies.items()), strict=True)
        _check_alike(config, dict(zip(replies, curvatures, strict=True)))
        agreed = agreed.model_copy(update={"curvature": max(curvatures), "slope": math.hypot(*slopes)})
        tell(federation, agreed)
    return agreed


def tell(federation: ConnectedSites, agreed: Agreement) -> dict[str, str]:
    """Sends all sites the agreement, or what is new in it, and returns their answers."""
    text, earlier = agreed.model_dump_json(), federation.told_all
    answers = federation.ask("agreement", agreement.addition(earlier, agreed) if earlier else text)
    federation.agreement = federation.told_all = text
    return answers


def agree_on_metric(config: Config, federation: ConnectedSites, agreed: Agreement) -> Agreement:
    """The agreement with the metric of the sites' second moments, where the model is trained in one."""
    plan = agreement.metric_plan(config, agreed)
    if plan is None:
        return agreed
    settings = not_none(config.federation)
    print(f"what the server learns: {sums_of_moments(masked=settings.secure)}", flush=True)
    tell(federation, agreed)
    like, kind = agreement.remote_problem(config, agreed).train.client(0), np.dtype(config.run.precision)
    with jax.enable_x64(True):
        algorithm = second_moments(plan.linear, everyone(len(agreed.sites)), rank=plan.rank)
        start, least = jnp.zeros(algorithm.size, kind), max(settings.least, 1)
        sums = ask_before(config, federation, agreed, "metric", algorithm, start, like, least=least, masked=True)
        metric = not_none(metric_from(plan.linear, jax.tree.map(np.asarray, sums), plan.rank, kind))
    texts = {name: agreement.as_text(array, config) for name, array in packed(metric).items()}
    return agreed.model_copy(update={"metric": texts})


def disclosures(config: Config, setup: Setup) -> tuple[str, ...]:
    """What the server learns of single sites."""
    own_models, own_parts, n = setup.personal is not None, setup.own is not None, setup.problem.n
    moments, sent = setup.problem.conditioning is not None, crossing(setup.algorithm, setup.problem)
    return tuple(agreement.disclosures(config, sent, n=n, own_models=own_models, own_parts=own_parts, moments=moments))


def resend_agreement(folder: Path, federation: ConnectedSites, agreed: Agreement) -> Agreement:
    """The agreement of the run to resume, sent again to the sites that are there."""
    done = checkpoint.rounds(folder / records.CHECKPOINT)
    federation.where = (done, "")
    federation.events = [event._replace(round=done, last_round=done) for event in federation.events]
    federation.note("", "resumed", f"the server was started again after {done} rounds")
    federation.agreement = agreed.model_dump_json()
    federation.ask("agreement", federation.agreement, everyone=False)
    return agreed


def told_baselines(config: Config, folder: Path, federation: ConnectedSites, run: str) -> np.ndarray | None:
    """The loss of every site's own model, told once in a run; None: it needs none."""
    if not agreement.needs_baselines(config):
        return None
    path = folder / BASELINES
    if not path.is_file():
        federation.observe({"kind": "state", "state": "fitting a model of its own at every site"})
        losses = {site: _number(site, text) for site, text in federation.ask("baseline", run).items()}
        _check_baselines(config, losses)
        write_whole(path, json.dumps(losses, indent=1) + "\n")
    by_site = json.loads(read_text(path))
    return np.array([float(by_site[site]) for site in federation.sites])


def choose_along_path(config: Config, folder: Path, federation: ConnectedSites, agreed: Agreement) -> Agreement:
    """The agreement with what folds at the sites choose, along one path of points; the metric is that of the choice.

    Every point is written when it has been heard: a server that is started again goes on with the next.
    """
    begun = settle.start(config)
    write_whole(folder / agreement.FILE, agreed.model_dump_json(indent=1) + "\n")
    baselines = told_baselines(config, folder, federation, agreed.run)
    setup = agreement.setup(begun, agreed, baselines=baselines)
    print(f"what the server learns: {along_folds()}", flush=True)
    federation.observe({"kind": "state", "state": "choosing by folds at every site"})
    federation.ask("prepare", f"{agreed.run} path", everyone=False, warm=True)
    problem, path = setup.problem, folder / folders.PATH
    metric = not_none(problem.conditioning, "the path has no metric").metric
    earlier = iter(json.loads(read_text(path)) if path.is_file() else [])
    heard: list[dict[str, Any]] = []
    prepared: list[Prepared] = []  # for the first point, whose programs serve all of them

    def ask(made: Algorithm, x: Vector, rounds: int) -> Point:
        record = next(earlier, None)
        if record is None:
            if not prepared:
                prepared.append(prepare(made, x, walk.row, setup.digest))
            settings = not_none(config.federation)
            options: dict[str, Any] = {"demands": Demands(max(settings.least, 1), settings.tries, 1.0, bound=None)}
            options |= {"part": "path", "run": agreed.run, "rounds": rounds}
            end = judged(ask_once(prepared[0], made.init(x), federation, config.run.seed, **options), made)
            record = {name: [None if np.isnan(a) else float(a) for a in getattr(end, name)] for name in NUMBERS}
            record |= {"model": agreement.as_text(end.model, begun)}
        heard.append(record)
        write_whole(path, json.dumps(heard) + "\n")
        losses, base = (np.array(record[name], np.float64) for name in NUMBERS)
        return Point(losses, base, jnp.asarray(agreement.as_vector(record["model"], begun, x.size)))

    walk = Walk(problem, metric, scaled(begun, problem), ask)
    choices = settle.along(config, walk)
    records.write_record(folder / records.CHOSEN, records.Choices(settings=choices))
    print("\n".join(choice.sentence for choice in choices), flush=True)
    chosen = settle.numbers_of(choices)
    agreed = agreed.model_copy(update={"chosen": chosen, "metric": None, "curvature": None, "slope": None})
    return send_agreement(agreement.stage(config, agreed), federation, agreed)


def _number(site: str, text: str) -> float:
    try:
        number = float(json.loads(text))
    except (ValueError, TypeError):
        number = math.nan
    require(
        math.isfinite(number),
        f"'{site}' told no loss of a model of its own ({text[:40]!r}); set objective.of = 'losses'",
    )
    return number


def start_from_first_module(config: Config, setup: Setup, federation: ConnectedSites, agreed: Agreement) -> Setup:
    """The run from the weights that the first site's module begins with."""
    problem = setup.problem
    algorithm, like = first_model(problem.n, problem.x), problem.train.client(0)
    x = ask_before(config, federation, agreed, "start", algorithm, problem.x, like, least=1)
    note = f"the model starts as the module of '{problem.names[0]}' does"
    return setup._replace(problem=replace(problem, x=x), notes=(*setup.notes, note))


def ask_before(
    config: Config,
    federation: ConnectedSites,
    agreed: Agreement,
    part: str,
    algorithm: Algorithm,
    x: Vector,
    shard: Data,
    *,
    least: int,
    masked: bool = False,
) -> Any:
    """The server's state after one exchange before the first round, which so many sites have to take part in."""
    settings = not_none(config.federation)
    demands = Demands(least=least, tries=settings.tries, heavy=1.0, bound=settings.believed)
    prepared = prepare(algorithm, x, shard, agreement.digest_of(config, agreed))
    secure = secure_sums(config) if masked else None
    options: dict[str, Any] = {"part": part, "run": agreed.run, "demands": demands, "secure": secure}
    return ask_once(prepared, algorithm.init(x), federation, config.run.seed, **options)


def secure_sums(config: Config) -> SecureSums | None:
    settings = not_none(config.federation)
    return SecureSums(settings.secure_bound, settings.threshold) if settings.secure else None


def _statistics(site: str, text: str) -> SiteStatistics:
    try:
        return SiteStatistics.model_validate_json(text)
    except ValidationError:
        raise InputError(
            f"'{site}' told statistics that cannot be read; give it the same version of Equipoise"
        ) from None


def _statistics_of(site: str, answer: SiteStatistics) -> Statistics:
    """Of a table: no column has more numbers than there are rows, or one site would count for more than its own."""
    statistics = Statistics.from_json(answer.statistics)._replace(site=site)
    columns = (statistics.label, *statistics.columns, *statistics.others)
    more = next((c.name for c in columns if max(c.n, c.missing) > answer.train), None)
    other = f"more in column {more!r}" if more else f"{statistics.rows} as well"
    require(
        more is None and statistics.rows == answer.train,
        f"'{site}' told of {answer.train} rows and of {other}; leave it out of federation.sites",
    )
    return statistics


def _counted(site: str, answer: SiteStatistics) -> float:
    """As how many independent rows a site's scored ones count: never more than there are."""
    rows = answer.test or answer.train
    require(
        answer.counted is not None,
        f"'{site}' did not tell as how many its rows of each data.unit count; give it the same version of Equipoise",
    )
    return min(not_none(answer.counted), float(rows))


def _check_alike(config: Config, curvatures: dict[str, float]) -> None:
    """Refuses a curvature with which one site would make everybody's steps tiny."""
    bound, usual = not_none(config.federation).believed, sorted(curvatures.values())[(len(curvatures) - 1) // 2]
    for site, curvature in curvatures.items():
        require(
            bound is None or curvature <= bound**2 * usual,
            f"'{site}' measured a curvature of {curvature:.2g}, {curvature / usual:.2g} times the median of the sites; "
            "leave it out of federation.sites, or give the step sizes as numbers",
        )


def _check_baselines(config: Config, baselines: dict[str, float]) -> None:
    """Refuses a loss below zero: a gain over it is one that no model can have, and would take all of the weight."""
    bound, usual = not_none(config.federation).believed, sorted(baselines.values())[(len(baselines) - 1) // 2]
    for site, loss in baselines.items():
        require(
            bound is None or 0 <= loss <= bound**2 * max(usual, 1.0),
            f"'{site}' told a loss of {loss:.2g} of a model of its own, and the median of the sites is {usual:.2g}; "
            "leave it out of federation.sites, or set objective.of = 'losses'",
        )


def _measured(site: str, text: str) -> tuple[float, float]:
    """A site's curvature and slope at the start."""
    try:
        curvature, slope = map(float, json.loads(text))
    except (ValueError, TypeError):
        curvature = slope = math.nan
    require(
        0 < curvature < math.inf and 0 <= slope < math.inf,
        f"'{site}' measured no curvature ({text[:40]!r}); give the step sizes as numbers",
    )
    return curvature, slope


def agree_on_features(
    config: Config, federation: ConnectedSites, network_agreed: Agreement, trained: Trained
) -> Agreement:
    """The agreement of the run on features of the trained network; all sites have to take part in it."""
    theta, _ = ravel_pytree(trained.theta)
    network = NetworkRecord(theta=as_text(theta, config), how=trained.how, down=trained.sent.down, up=trained.sent.up)
    agreed = network_agreed.model_copy(
        update={"run": f"{network_agreed.run}-features", "network": network, "curvature": None, "slope": None}
    )
    if agreement.has_features(config):
        print(f"what the server learns: {sums_of_features(masked=not_none(config.federation).secure)}", flush=True)
        tell(federation, agreed)
        like, n = agreement.features_like(config, agreement.network_problem(config, agreed)), len(agreed.sites)
        with jax.enable_x64(True):
            algorithm = moments(like.inputs.shape[1], everyone(n))
            start = jnp.zeros(algorithm.size, like.inputs.dtype)
            sums = ask_before(config, federation, agreed, "moments", algorithm, start, like, least=n, masked=True)
        mean, scale = (as_text(part, config) for part in scaling(sums))
        scaled = network.model_copy(update={"mean": mean, "scale": scale})
        agreed = agreed.model_copy(update={"network": scaled})
    return send_agreement(config, federation, agreed)
