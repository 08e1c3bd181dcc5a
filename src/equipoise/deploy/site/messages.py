"""A site's side: the app that Flower calls, one message in and one reply out, and what is kept for the next message.

A reply is made of the site's own data and memory, and nothing but replies leaves: of an unexpected error the server
hears the kind, while its text, which may quote data, stays in the site's own log.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from jaxtyping import PyTree

from equipoise import tensors
from equipoise._jax import keep_programs
from equipoise.deploy.wire import messages as wire
from equipoise.deploy.wire import secure
from equipoise.deploy.wire.messages import Address, Refusal, refuse_unless, text
from equipoise.deploy.wire.secure import AgreedSteps, SecureSite, answer_step, check_masked, masked, read_message
from equipoise.errors import require
from equipoise.protocol import Algorithm, Data, Message, Vector, client_program
from equipoise.tensors import named

RUNS = 20  # that a site remembers


class Memory(NamedTuple):
    """One client's states in one run."""

    path: Path
    like: PyTree  # of one state

    def states(self) -> dict[str, Any]:
        """The states by mark, the newest last."""
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

    def keep(self, where: Address, exchange: int, state: PyTree) -> None:
        """Adds a state, and drops those that the server will not go back to."""
        states, new = self.states(), wire.mark(where.attempt, where.round, exchange)
        check_order(states, new)
        kept = {m: s for m, s in states.items() if m in (where.since, *where.keep) and m != new} | {new: state}
        arrays = {f"{j}{name}": a for j, s in enumerate(kept.values()) for name, a in tensors.named(s)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        tensors.write(self.path, arrays, json.dumps(list(kept)))
        part = self.path.name.partition("-")[0]
        forget_old(self.path.parent.glob(f"{part}-*.safetensors"))


def forget_old(files: Iterable[Path], kept: int = RUNS) -> None:
    """Of the runs that a site has taken part in, or was asked to, the last are remembered."""
    existing = [path for path in files if path.is_file()]
    if len(existing) > kept:
        for old in sorted(existing, key=lambda path: path.stat().st_mtime_ns)[:-kept]:
            old.unlink(missing_ok=True)


def check_order(states: Mapping[str, Any], new: str) -> None:
    """A message that was overtaken by a later one must not change anything."""
    late = any(wire.order(new) < wire.order(state) for state in states)
    refuse_unless(not late, "this message came too late: a later one has been answered already")


log = logging.getLogger("equipoise.flower")
OPENED = 6  # jobs that a process keeps open
KEY_WORDS = 2  # of a random key of JAX


class Job(NamedTuple):
    """What a site does in one part of a run: `algorithm`, from the start x, on its own `shard`."""

    algorithm: Algorithm
    x: Vector
    shard: Data
    config: str = ""  # what else the server has to have the same, such as a digest of the settings
    compiled: bool = True  # not where the task calls back into another library
    # Sees every message that was answered, and the site's state after it: to save models.
    then: Callable[[Message, Any], None] | None = None
    within: Callable[[], AbstractContextManager[None]] = nullcontext  # around its work, inside the participant's
    # Sees the round and the message before anything is worked out: a Refusal where the site's owner wants no answer.
    check: Callable[[int, Message], None] | None = None
    counted: Mapping[str, float] | None = None  # what every site counts for, where it is not sent: its rows


class Participant(NamedTuple):
    """A site of a federation."""

    name: str  # by which everybody knows it
    folder: Path  # of its own, for what it must not forget
    jobs: Mapping[str, Callable[[], Job]]  # part -> what to do there, opened when the first message comes
    answers: Mapping[str, Callable[[str], str]] = {}  # to questions that are not exchanges
    within: Callable[[], AbstractContextManager[None]] = nullcontext  # around every answer: the precision of the run
    secure: SecureSite | None = None  # its totals leave masked, or not at all
    # Around every answer, with the message's kind and content: a Refusal keeps it from being worked out.
    guard: Callable[[str, RecordDict, Callable[[], RecordDict]], RecordDict] = lambda kind, content, answer: answer()
    # The random key that it works with, in words, instead of the one that the server has sent in a run of that name.
    own_key: Callable[[str, list[int]], list[int]] = lambda run, words: words


class Open(NamedTuple):
    """A job that is ready to work."""

    job: Job
    specs: wire.Specs
    plan: str
    data: Data
    work: Mapping[str, Callable]
    like: Any
    steps: AgreedSteps


compiling = threading.RLock()  # sites that share a process and an algorithm compile it once, one after the other


def open_job(job: Job) -> Open:
    algorithm, x, shard, config, compiled, *_ = job
    with job.within():
        for name, a in named(shard):
            clean = not jnp.issubdtype(a.dtype, jnp.floating) or bool(np.isfinite(np.asarray(a)).all())
            why = f"{name} of this site's data has NaN or infinite entries; clean them or leave those rows out"
            require(clean, why)
        specs = wire.exchange_specs(algorithm, x, shard)
        like = jax.eval_shape(algorithm.init_client, x)
        exchanges = {name: spec.exchange for name, spec in specs.items()}
        works = {name: client_program(e) if compiled else e.work for name, e in exchanges.items()}
        data = wire.program(algorithm.prepare)(shard) if compiled else algorithm.prepare(shard)
        return Open(
            job, specs, wire.fingerprint(algorithm, specs, config), data, works, like, AgreedSteps(algorithm, x)
        )


def guarded(name: str, answer: Callable[[], RecordDict]) -> RecordDict:
    """The answer, or an error that says why the site does not give one."""
    try:
        return answer()
    except Refusal as refusal:
        log.warning("%s: %s", name, refusal)
        return text("refused", str(refusal))
    except Exception as error:
        log.exception("%s could not answer", name)
        return text("failed", f"{type(error).__name__}; the log of '{name}' says more")


def answer_question(question: str, site: Participant, _: dict[str, Open], content: RecordDict) -> RecordDict:
    refuse_unless(question in site.answers, f"'{site.name}' has no answer to '{question}'")
    log.info("%s: answering the server's question '%s'", site.name, question)
    return text("answer", site.answers[question](wire.read_text(content, "question") or ""))


def prepare(site: Participant, opened: dict[str, Open], content: RecordDict) -> RecordDict:
    """Opens the parts that a question names and compiles what they do, so that the first exchange takes no longer."""
    since = time.monotonic()
    log.info("%s: compiling its part of the run", site.name)
    run, *parts = (wire.read_text(content, "question") or "").split() or [""]
    refuse_unless(wire.NAME.fullmatch(run), "the message names no run that could be kept")
    wire.of_run.set(run)
    for part in parts:
        refuse_unless(part in site.jobs, f"'{site.name}' has no part '{part}'")
        with compiling:
            job = keep_open(opened, part, run, open_job(site.jobs[part]()))
            if not job.job.compiled:
                continue
            client, key = job.job.algorithm.init_client(job.job.x), jax.random.key(0)
            for name, spec in job.specs.items():
                message = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), spec.message)
                jax.block_until_ready(job.work[name](message, client, job.data, key))
    log.info("%s: ready to train after %.1f s", site.name, time.monotonic() - since)
    return text("answer", "")


def keep_open(opened: dict[str, Open], part: str, run: str, job: Open) -> Open:
    """The jobs of the last runs stay open."""
    key = f"{part} {run}"
    opened.pop(key, None)
    opened[key] = job
    for old in [*opened][:-OPENED]:
        del opened[old]
    return job


SILENCE = 10.0  # seconds between two lines of a site about its rounds
last_said: dict[str, float] = {}


def say_round(site: Participant, where: Address) -> None:
    """For whoever watches a site; not every message, of which there may be hundreds a second."""
    now = time.monotonic()
    if where.part == "train" and now - last_said.get(site.name, -SILENCE) >= SILENCE:
        last_said[site.name] = now
        log.info("%s: round %d, %s", site.name, where.round + 1, where.exchange)


def work(site: Participant, opened: dict[str, Open], content: RecordDict) -> RecordDict:
    """The reply to an exchange's message; `opened` keeps jobs between two messages of one process."""
    where = wire.read_address(content)
    refuse_unless(where.part in site.jobs, f"'{site.name}' has no part '{where.part}'")
    wire.of_run.set(where.run)
    job = opened.get(f"{where.part} {where.run}")
    if job is None or job.plan != where.plan:  # another agreement than when it was opened
        with compiling:
            job = keep_open(opened, where.part, where.run, open_job(site.jobs[where.part]()))
    refuse_unless(
        where.plan == job.plan,
        f"'{site.name}' and the server do not run the same: give both the same settings, and the same version",
    )
    refuse_unless(where.exchange in job.specs, f"{job.job.algorithm.name} has no exchange {where.exchange[:40]!r}")
    spec = job.specs[where.exchange]
    say_round(site, where)
    check_masked(site.secure, spec, content)
    message, weights = read_message(site.secure, spec, where, content)
    if site.secure is not None:
        job.steps.check(where.round, message)
    if job.job.check is not None:
        job.job.check(where.round, message)
    memory = Memory(site.folder / f"{where.part}-{where.run}.safetensors", job.like)
    mine = recall(site, job, spec, where, memory)
    refuse_unless(len(where.key) == KEY_WORDS, "the message's random key is not valid")
    key = jax.random.wrap_key_data(jnp.asarray(site.own_key(where.run, where.key), jnp.uint32))
    if not job.job.compiled:  # which would make them JAX's
        message, mine = jax.tree.map(jnp.asarray, (message, mine))
    with job.job.within():
        new, reply = jax.tree.map(np.asarray, job.work[where.exchange](message, mine, job.data, key))
    if "mask" in content and site.secure is not None:
        counted = [] if job.job.counted is None else [job.job.counted]
        reply = masked(site.secure, spec, where, content, reply, [*weights, *counted])
    answer = RecordDict({"reply": wire.pack(reply)})
    if spec.exchange.writes:  # last of all, so that whatever fails leaves the memory as it was
        memory.keep(where, spec.position, new)
    if job.job.then is not None:
        job.job.then(message, new)
    return answer


def recall(site: Participant, job: Open, spec: wire.ExchangeSpec, where: Address, memory: Memory) -> Any:
    """The client's state that the server counts on."""
    start = job.job.algorithm.init_client(job.job.x)
    if not jax.tree.leaves(job.like):
        return start
    states = memory.states()
    check_order(states, wire.mark(where.attempt, where.round, spec.position))
    remembered = where.since == wire.START or where.since in states
    refuse_unless(
        remembered or not spec.reads,
        f"'{site.name}' does not remember what it did in {where.since}; it can take part again in a new run, or once "
        "the file with its memory is back",
    )
    return states.get(where.since, start)


KEPT = 2  # settings for which a site that stays is kept open


def client_app(
    open_site: Callable[[Context], Participant],
    *,
    questions: tuple[str, ...] = (),
    compiled: Path | None = None,
    rejected: Callable[[Context, str, Exception], None] | None = None,
) -> ClientApp:
    """A ClientApp for the site that `open_site` opens.

    Args:
        open_site: from a node's context (its configuration, and that of the run) to the site.
        questions: the names of the questions that the site has answers to.
        compiled: a folder where compiled programs are kept, for the next process.
        rejected: sees a message, by its kind, for which the site could not be opened.
    """
    if compiled is not None:
        keep_programs(compiled)
    app = ClientApp()
    # In a process that stays, a run that is resumed finds its site as it left it.
    sites: dict[tuple[str, str], tuple[Participant, dict[str, Open]]] = {}

    def site_of(context: Context) -> tuple[Participant, dict[str, Open]]:
        where = (site_name(context), repr(sorted(context.run_config.items())))
        if where not in sites:
            site = open_site(context)
            require(isinstance(site, Participant), f"open a site as a Participant, not as {type(site).__name__}")
            require(site.name, "a site has no name; set it in the node's configuration")
            sites[where] = (site, {})
            of_this_site = [key for key in sites if key[0] == where[0]]
            for old in of_this_site[:-KEPT]:
                del sites[old]
        return sites[where]

    @app.query("hello")
    def hello(message: FlowerMessage, context: Context) -> FlowerMessage:
        abilities = ["inline"] if context.node_config.get("inline") else []
        return FlowerMessage(wire.greeting(site_name(context), abilities), reply_to=message)

    @app.query("notice")
    def notice(message: FlowerMessage, context: Context) -> FlowerMessage:
        log.warning("the server says: %s", wire.plain(wire.read_text(message.content, "question") or ""))
        return FlowerMessage(text("answer", ""), reply_to=message)

    def replying(kind: str, answer: Callable[[Participant, dict[str, Open], RecordDict], RecordDict]) -> Callable:
        def handle(message: FlowerMessage, context: Context) -> FlowerMessage:
            def answered() -> RecordDict:
                try:
                    site, opened = site_of(context)
                except Exception as error:
                    if rejected is not None:
                        rejected(context, kind, error)
                    raise
                with site.within():
                    return site.guard(kind, message.content, lambda: answer(site, opened, message.content))

            return FlowerMessage(guarded(site_name(context), answered), reply_to=message)

        return handle

    app.train("exchange")(replying("exchange", work))
    app.query("prepare")(replying("prepare", prepare))
    app.query(secure.QUESTION)(replying(secure.QUESTION, lambda site, _, content: answer_step(site.secure, content)))
    for question in questions:
        app.query(question)(replying(question, partial(answer_question, question)))
    return app


def site_name(context: Context) -> str:
    """The name that a node was started with; of a node of Flower's own examples, its partition."""
    name, partition = context.node_config.get("site"), context.node_config.get("partition-id")
    if name is None and isinstance(partition, int):
        return f"partition-{partition}"
    require(isinstance(name, str) and name, "this node has no name; start it with --node-config \"site='...'\"")
    return str(name)
