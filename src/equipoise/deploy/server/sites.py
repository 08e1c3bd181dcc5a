"""Who is there: sites by name, whatever Flower calls their nodes; and the way to each of them and back."""

import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from equipoise.deploy.server.events import Event, Record, What
from equipoise.deploy.wire.messages import content_bytes, plain, read_abilities, read_receipt, read_text, text
from equipoise.deploy.wire.transport import Transport, batches
from equipoise.errors import EquipoiseError, not_none, require
from equipoise.privacy.audit import Receipt

log = logging.getLogger("equipoise.flower")
TOGETHER = 100  # messages that a site may be working on at a time, at most
SMALL = 1 << 16  # bytes of a reply besides its arrays
ANSWER = 32 << 20  # bytes of the answer to a question, at most
HOLD = 20.0  # seconds that one pull may wait
Label = TypeVar("Label")  # by which whoever sends messages tells their replies apart
Limit = Callable[[int], float]  # after so many answers, the seconds since the start at which waiting ends


class Timeouts(NamedTuple):
    """How long to wait, in seconds."""

    gather: float = 300.0  # for the sites at the start
    hello: float = 60.0  # for a node to say its name
    question: float = 300.0  # for answers to `ask`
    exchange: float = 600.0  # for the replies of one exchange
    poll: float = 0.2  # between two looks for replies, where the SuperLink does not hold pulls


class Delivery(NamedTuple):
    """A reply, and why it holds no answer if it holds none."""

    what: What = "broken"
    why: str = "the reply holds no answer"
    message: Message | None = None  # None: it did not come

    @property
    def content(self) -> RecordDict | None:
        return None if self.message is None or self.message.has_error() else self.message.content


class FederationWarning(UserWarning):
    """Something about a site that a person should look at."""


class ConnectedSites:
    """The sites of a run and the way to each of them; live, so unlike most of Equipoise it has a state.

    Training and evaluation may use it at the same time, from two threads.
    """

    def __init__(self, grid: Grid, sites: Sequence[str] | None, timeouts: Timeouts, *, stock: bool = False):
        self.grid, self.timeouts = grid, timeouts
        self.transport = Transport(grid, stock=stock)
        log.info("%s", self.transport.about)
        self.sites = tuple(sites or ())
        self.anyone = sites is None  # while it is not decided yet who takes part
        self.nodes: dict[str, int] = {}  # site -> node
        self.without: frozenset[str] = frozenset()  # sites of the run that its operator leaves out
        self.agreement = ""  # what was agreed before the first round; who has lost it is told all of it again
        self.told_all = ""  # the agreement that every site has: of a later one only what is new is told
        self.refused: dict[str, int] = {}  # what the SuperLink refused at its port so far, how often
        self.receipts: dict[str, Receipt] = {}  # site -> where its own log stood with its last reply
        self.lines: dict[str, dict[int, str]] = {}  # site -> number and digest of the last lines it told of
        self.inline: set[int] = set()  # nodes that take messages with the content inside
        self.events: list[Event] = []
        self._last_event: dict[str, int] = {}  # site -> its last event, by its place among them
        self.reported = 0  # events before this one stand in an earlier outcome
        self.times: dict[str, deque[float]] = {}  # exchange -> seconds of past replies
        self.observe: Callable[[Record], None] = lambda record: None  # sees events and exchanges as they happen
        self._where = threading.local()
        self._lock = threading.RLock()
        self._greeted: dict[str, tuple[int, float]] = {}  # pending greeting -> node, when
        self._turned_away: set[int] = set()
        self._silent: set[int] = set()  # did not answer; greeted again, but nobody waits for them

    @property
    def where(self) -> tuple[int, str]:
        """Round and exchange that events belong to, in this thread."""
        return getattr(self._where, "now", (0, ""))

    @where.setter
    def where(self, now: tuple[int, str]) -> None:
        self._where.now = now

    def note(self, site: str, what: What, why: str, times: int = 1) -> None:
        if what == "network" and self.events and self.events[-1][:5] == (*self.where, site, what, why):
            return  # it is still down
        event = self._add(site, what, why, times)
        if event.times == times:
            log.log(logging.INFO if what == "joined" else logging.WARNING, "round %s %s: %s %s: %s", *event[:5])

    def warn(self, site: str, what: What, why: str) -> None:
        self._add(site, what, why)
        warnings.warn(why, FederationWarning, stacklevel=3)

    def _add(self, site: str, what: What, why: str, times: int = 1) -> Event:
        """Adds an event, or counts it with the site's last event if it is the same."""
        event = Event(*self.where, site, what, why, times, self.where[0] if times > 1 else None)
        self.observe({"kind": "event", **dict(zip(Event._fields[:5], event, strict=False))})
        with self._lock:
            subject = why if what == "outsider" else site  # whoever knocks in turn in two ways does not fill the list
            last = self._last_event.get(subject, -1)
            if last >= self.reported and self.events[last][3:5] == (what, why):
                event = self.events[last]
                event = event._replace(times=event.times + times, last_round=self.where[0])
                self.events[last] = event
            else:
                self._last_event[subject] = len(self.events)
                self.events.append(event)
        return event

    # Looking for sites.

    def look(self) -> None:
        """Greets new nodes, hears those greeted before, and forgets those that are gone."""
        try:
            present = set(self.grid.get_node_ids())
        except Exception as error:
            self.note("", "network", f"the nodes could not be listed ({type(error).__name__}: {error})")
            return
        before, self.refused = self.refused, self.transport.door().refused
        if self.refused != before:
            self.observe({"kind": "refused", "refused": self.refused})
        for why, times in self.refused.items():
            if times > before.get(why, 0):
                self.note("", "outsider", f"refused at the server's port: {why}", times - before.get(why, 0))
        with self._lock:
            self._turned_away &= present  # one that comes again may have another name
            self.nodes = {site: node for site, node in self.nodes.items() if node in present}
            waiting = {node for node, _ in self._greeted.values()}
            new = sorted(present - set(self.nodes.values()) - self._turned_away - waiting)
            ids = self._push([self._question("hello", "", node, self.timeouts.hello) for node in new])
            self._greeted |= {i: (node, time.monotonic()) for i, node in zip(ids, new, strict=True) if i}
            self._hear()

    def _hear(self) -> None:
        for reply in self._pull(list(self._greeted)):
            node, _ = self._greeted.pop(reply.metadata.reply_to_message_id, (None, 0))
            if node is None:
                continue
            name = read_text(reply.content, "answer") if reply.has_content() else None
            if name:
                (self.inline.add if "inline" in read_abilities(reply.content) else self.inline.discard)(node)
                self._admit(plain(name), node)
            elif reply.has_error():
                why = f"node {node} did not say its name ({plain(str(reply.error.reason))})"
                self._ignore(node, "late", why)
            else:
                self._ignore(node, "failed", f"node {node} has no name; set site='...' in its configuration")
        now = time.monotonic()
        for i, (node, when) in list(self._greeted.items()):
            if now - when > self.timeouts.hello:
                del self._greeted[i]
                self._ignore(node, "late", f"node {node} did not say its name within {self.timeouts.hello:g} s")

    def _ignore(self, node: int, what: What, why: str) -> None:
        if node not in self._silent:
            self._silent.add(node)
            self.note("", what, why)

    def _admit(self, name: str, node: int) -> None:
        names = self.transport.door().names
        if names is not None and names.get(node) != name:
            owner = f"the key of '{names[node]}'" if node in names else "a key that is not registered"
            why = f"a node with {owner} says that it is '{name}'; it is turned away: a site has its own key and name"
            return self._turn_away(name, node, "false name", why)
        if not self.anyone and name not in self.sites:
            why = f"'{name}' is not one of this run's sites ({', '.join(self.sites)}); it can join the next run"
            return self._turn_away(name, node, "stranger", why)
        if name in self.without:
            self._turned_away.add(node)
            self._push([self._question("notice", f"'{name}' is left out of this run by its operator", node, 60.0)])
            return None
        if name in self.nodes:  # and still answers: a site that was killed stays on Flower's list for a while
            wait, other = self.timeouts.hello, self.nodes[name]
            again = self.deliver([(0, self._question("hello", "", other, wait))], lambda _: wait)
            if any(delivery.content is not None for _, delivery in again):
                why = f"there is another node called '{name}'; stop one of them, or rename it"
                return self._turn_away(name, node, "double", why)
        self.nodes[name] = node
        self._silent.discard(node)
        self.note(name, "joined", f"'{name}' is there")

    def _turn_away(self, name: str, node: int, what: What, why: str) -> None:
        self._turned_away.add(node)
        self.warn(name, what, why)
        self._push([self._question("notice", why, node, self.timeouts.hello)])

    def find(self, wanted: Sequence[str], *, needed: int = 0, seconds: float = 0.0) -> None:
        """Looks for sites; waits while nodes that were greeted lately may turn out to be missing ones.

        Where fewer than `needed` of the wanted are there, it waits for more, up to `seconds`.
        """
        end = time.monotonic() + seconds
        self.look()

        def missing() -> int:
            return sum(site not in self.nodes for site in wanted)

        def hopeful() -> bool:
            return any(node not in self._silent for node, _ in self._greeted.values())

        while missing() and (hopeful() or (len(wanted) - missing() < needed and time.monotonic() < end)):
            time.sleep(self.timeouts.poll)
            if hopeful():
                with self._lock:
                    self._hear()
            else:
                self.look()

    def tell_agreement(self, site: str) -> None:
        """Sends the agreement again to a site that has lost its folder, and does not wait for its answer."""
        node = self.nodes.get(site)
        if self.agreement and node is not None:
            self._push([self._question("agreement", self.agreement, node, self.timeouts.question)])

    def suspect(self, site: str) -> None:
        """A site that did not answer is asked for its name again; until it says it, nobody waits for it."""
        with self._lock:
            node = self.nodes.pop(site, None)
            if node is not None:
                self._silent.add(node)

    # Sending and receiving.

    def deliver(
        self,
        messages: Iterable[tuple[Label, Message]],
        limit: Limit,
        *,
        reply_bytes: int = 0,
        hopeless: Callable[[Label], bool] | None = None,
    ) -> Iterator[tuple[Label, Delivery]]:
        """Sends the messages and yields a Delivery for each as it arrives: the reply, or why it did not come.

        Messages are taken from the iterable and sent in requests of bounded size, so that not all of them are in memory
        at a time; `reply_bytes`, about what a reply holds, bounds the answers in the same way. Who is `hopeless` is not
        waited for any longer.
        """
        pending: dict[str, Label] = {}
        to: dict[str, int] = {}  # message -> node
        for batch in batches(messages, lambda item: content_bytes(item[1])):
            ids = self._push([message for _, message in batch], 2 * reply_bytes + SMALL if reply_bytes else ANSWER)
            for (label, message), number in zip(batch, ids, strict=True):
                if number:
                    pending[number], to[number] = label, message.metadata.dst_node_id
                else:
                    yield label, Delivery("network", "the message could not be sent")
        start, asked = time.monotonic(), len(pending)
        while pending:
            began = time.monotonic()
            seconds = limit(asked - len(pending))
            late = Delivery("late", f"no reply within {seconds:.3g} s")
            lost = late._replace(why="Flower no longer has the message, or its reply")
            received = False
            wait = min(max(seconds - (began - start), 0.0), HOLD if hopeless is None else 1.0)
            for reply in self._pull(list(pending), wait, reply_bytes):
                # Replies name the node that sent them, and sometimes the wrong one; what they reply to is right.
                number = reply.metadata.reply_to_message_id
                if number in pending:
                    received = True
                    self._keep_receipt(to[number], reply)
                    in_time = time.monotonic() - start < 0.9 * seconds  # Flower's clock is another one
                    yield pending.pop(number), opened(reply, lost if in_time else late)
            for number, label in list(pending.items()):
                if hopeless is not None and hopeless(label):
                    del pending[number]
                    yield label, Delivery("late", "it was late in training meanwhile")
            now = time.monotonic()
            if now - start >= limit(asked - len(pending)):
                yield from ((label, late) for label in pending.values())
                return
            if pending and not received and now - began < self.timeouts.poll:
                time.sleep(self.timeouts.poll)

    def _keep_receipt(self, node: int, reply: Message) -> None:
        """Of two replies that are under way at the same time, the later line may come first.

        A log that was begun anew comes to a number that was told of before, with another digest.
        """
        now = read_receipt(reply.content) if reply.has_content() else None
        site = next((name for name, other in self.nodes.items() if other == node), None)
        if now is None or site is None:
            return
        with self._lock:
            before = self.receipts.get(site, now)
            lines = self.lines.setdefault(site, {before.number: before.digest})
            anew = now.number < before.number - TOGETHER or lines.get(now.number, now.digest) != now.digest
            if anew:
                lines.clear()
            lines[now.number] = now.digest
            for old in [*lines][: -2 * TOGETHER]:
                del lines[old]
            self.receipts[site] = now if anew else max(before, now)
        if anew:
            why = f"the log of '{site}' has gone back to an earlier line than it told before: lines were deleted there"
            self.note(site, "log went back", why)

    def ask(self, question: str, value: str = "", *, everyone: bool = True, warm: bool = False) -> dict[str, str]:
        """What every site answers to a question that is not an exchange (`Participant.answers`).

        All have to answer, unless `everyone` is False: then those who do not are noted. `warm`: only sites that stay
        are asked.
        """
        require(question.isidentifier(), f"'{question}' cannot be asked; give a name like 'statistics'")
        self.find([site for site in self.sites if site not in self.without])
        self.where = (self.where[0], question)
        wanted = [s for s in self.sites if s not in self.without and (not warm or self.nodes.get(s) in self.inline)]
        wait, answers = self.timeouts.question, dict[str, str]()
        asked = [(s, self._question(question, value, self.nodes[s], wait)) for s in wanted if s in self.nodes]
        deliveries = dict(self.deliver(asked, lambda _: wait))
        for site in wanted:
            delivery = deliveries.get(site, Delivery("absent", "the site is not there"))
            answer = None if delivery.content is None else read_text(delivery.content, "answer")
            if answer is not None:
                answers[site] = answer
                continue
            self.note(site, delivery.what, delivery.why)
            if everyone:
                raise EquipoiseError(f"'{site}' did not answer '{question}': {delivery.why}")
        return answers

    @staticmethod
    def _question(question: str, value: str, node: int, ttl: float) -> Message:
        return Message(text("question", value), node, f"query.{question}", ttl=max(ttl, 1.0))

    def _push(self, messages: list[Message], largest: int = SMALL) -> list[str | None]:
        if not messages:
            return []
        try:
            able = self.inline | self.transport.door().staying
            inside = [message.metadata.dst_node_id in able for message in messages]
            ids = self.transport.push(messages, inside, largest)
        except Exception as error:
            self.note("", "network", f"messages could not be sent ({type(error).__name__}: {error})")
            ids = []
        return ids + [None] * (len(messages) - len(ids))

    def _pull(self, ids: list[str], wait: float = 0.0, reply_bytes: int = 0) -> Iterator[Message]:
        """The replies that have come; one that Flower itself cannot read does not cost the others."""
        if not ids:
            return
        try:
            yield from self.transport.pull(ids, wait, reply_bytes)
        except Exception as error:
            if len(ids) == 1:
                self.note("", "network", f"a reply could not be read ({type(error).__name__}: {plain(str(error))})")
                return
            for i in ids:
                yield from self._pull([i])


def opened(reply: Message, gone: Delivery) -> Delivery:
    """What Flower delivered; `gone` where it is only the news that it has thrown the message away."""
    if not reply.has_error():
        refused, failed = (read_text(reply.content, kind) for kind in ("refused", "failed"))
        if refused is not None:
            return Delivery("refused", plain(refused), reply)
        return Delivery(message=reply) if failed is None else Delivery("failed", plain(failed), reply)
    code, why = reply.error.code, plain(str(reply.error.reason))
    if code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE):
        return gone
    if code == ErrorCode.NODE_UNAVAILABLE:
        return Delivery("absent", "its node has gone", reply)
    return Delivery("failed", f"error {code}: {why}", reply)


def gather(
    grid: Grid,
    *,
    n: int | None = None,
    sites: Sequence[str] | None = None,
    timeouts: Timeouts | None = None,
    observe: Callable[[Record], None] | None = None,
    stock: bool = False,
    without: Sequence[str] = (),
) -> ConnectedSites:
    """Waits for the sites of a run: those named, or else the first n, which are numbered by name.

    Sites that are named and do not come in time are absent until they do; without names all n have to come. `observe`
    sees every event and every exchange as it happens; `stock`: messages go Flower's own way only. Sites `without` which
    a run is resumed keep their places and are asked nothing.
    """
    timeouts = timeouts or Timeouts()
    require((n is None) != (sites is None), "give the sites' names, or their number n")
    require(sites is None or len(set(sites)) == len(sites) > 0, f"the sites {sites} are not distinct; name each once")
    strange = [name for name in without if sites is None or name not in sites]
    require(
        not strange,
        f"{', '.join(strange)} cannot be left out; give the names of sites that the run has: {', '.join(sites or ())}",
    )
    wanted = not_none(n) if sites is None else len(sites) - len({*without})
    federation, end = ConnectedSites(grid, sites, timeouts, stock=stock), time.monotonic() + timeouts.gather
    federation.observe = observe or federation.observe
    federation.without = frozenset(without)
    for site in sorted(federation.without):
        federation.note(site, "left out", f"'{site}' is left out of this run by its operator")
    federation.look()
    while len(federation.nodes) < wanted and time.monotonic() < end:
        time.sleep(timeouts.poll)
        federation.look()
    names, double = sorted(federation.nodes), [e for e in federation.events if e.what == "double"]
    require(not double, double[0].why if double else "")
    if sites is None:
        require(
            len(names) == n,
            f"{len(names)} sites came within {timeouts.gather:g} s ({', '.join(names)}) but the run is for {n}; start "
            "the missing ones, or name those that take part",
        )
        federation.sites, federation.anyone = tuple(names), False
    for site in federation.sites:
        if site not in federation.nodes and site not in federation.without:
            why = f"'{site}' did not come within {timeouts.gather:g} s; the run starts without it"
            federation.warn(site, "absent", why)
    return federation
