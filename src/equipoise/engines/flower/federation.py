"""Who is there: sites by name, whatever Flower calls their nodes."""

import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from equipoise.engines.flower.events import Event, What
from equipoise.engines.flower.letters import plain, read_text, text
from equipoise.errors import EquipoiseError, require

log = logging.getLogger("equipoise.flower")


class Patience(NamedTuple):
    """How long to wait, in seconds."""

    gather: float = 300.0  # for the sites at the start
    hello: float = 60.0  # for a node to say its name
    question: float = 300.0  # for answers to `ask`
    exchange: float = 600.0  # for the replies of one exchange
    poll: float = 0.2  # between two looks for replies


class Post(NamedTuple):
    """A reply, or why there is none."""

    content: RecordDict | None
    message: Message | None
    what: What = "late"
    why: str = ""


class FederationWarning(UserWarning):
    """Something about a site that a person should look at."""


class Federation:
    """The sites of a run and the way to each of them; live, so unlike most of Equipoise it has a state."""

    def __init__(self, grid: Grid, sites: Sequence[str] | None, patience: Patience):
        self.grid, self.patience = grid, patience
        self.sites = tuple(sites or ())
        self.anyone = sites is None  # while it is not settled yet who takes part
        self.nodes: dict[str, int] = {}  # site -> node
        self.events: list[Event] = []
        self.reported = 0  # events before this one stand in an earlier outcome
        self.where = (0, "")  # round and exchange, for events
        self._greeted: dict[str, tuple[int, float]] = {}  # pending greeting -> node, when
        self._turned_away: set[int] = set()
        self._silent: set[int] = set()  # greeted in vain; greeted again, but nobody waits for them

    def note(self, site: str, what: What, why: str) -> None:
        event = self._add(site, what, why)
        log.log(logging.INFO if what == "joined" else logging.WARNING, "round %s %s: %s %s: %s", *event)

    def warn(self, site: str, what: What, why: str) -> None:
        self._add(site, what, why)
        warnings.warn(why, FederationWarning, stacklevel=3)

    def _add(self, site: str, what: What, why: str) -> Event:
        self.events.append(Event(*self.where, site, what, why))
        return self.events[-1]

    # Looking for sites.

    def look(self) -> None:
        """Greets new nodes, hears those greeted before, and forgets those that are gone."""
        try:
            present = set(self.grid.get_node_ids())
        except Exception as error:
            self.note("", "network", f"the nodes could not be listed ({type(error).__name__}: {error})")
            return
        self.nodes = {site: node for site, node in self.nodes.items() if node in present}
        waiting = {node for node, _ in self._greeted.values()}
        new = sorted(present - set(self.nodes.values()) - self._turned_away - waiting)
        ids = self._push([self._question("hello", "", node, self.patience.hello) for node in new])
        self._greeted |= {i: (node, time.monotonic()) for i, node in zip(ids, new, strict=True) if i}
        self._hear()

    def _hear(self) -> None:
        for reply in self._pull(list(self._greeted)):
            node, _ = self._greeted.pop(reply.metadata.reply_to_message_id, (None, 0))
            if node is None:
                continue
            name = read_text(reply.content, "answer") if reply.has_content() else None
            if name:
                self._admit(plain(name), node)
            elif reply.has_error():
                why = f"node {node} did not say its name ({plain(str(reply.error.reason))})"
                self._ignore(node, "late", why)
            else:
                self._ignore(node, "failed", f"node {node} has no name; set site='...' in its configuration")
        now = time.monotonic()
        for i, (node, when) in list(self._greeted.items()):
            if now - when > self.patience.hello:
                del self._greeted[i]
                self._ignore(node, "late", f"node {node} did not say its name within {self.patience.hello:g} s")

    def _ignore(self, node: int, what: What, why: str) -> None:
        if node not in self._silent:
            self._silent.add(node)
            self.note("", what, why)

    def _admit(self, name: str, node: int) -> None:
        if not self.anyone and name not in self.sites:
            why = f"'{name}' is none of this run's sites ({', '.join(self.sites)}); it can join the next run"
            return self._turn_away(name, node, "stranger", why)
        if name in self.nodes and self._alive(self.nodes[name]):
            why = f"there is another node called '{name}'; stop one of them, or rename it"
            return self._turn_away(name, node, "double", why)
        self.nodes[name] = node
        self.note(name, "joined", f"'{name}' is there")

    def _turn_away(self, name: str, node: int, what: What, why: str) -> None:
        self._turned_away.add(node)
        self.warn(name, what, why)
        self._push([self._question("notice", why, node, self.patience.hello)])

    def _alive(self, node: int) -> bool:
        """Whether a node still answers: a site that was killed stays on Flower's list for a while."""
        wait = self.patience.hello
        return self.deliver({0: self._question("hello", "", node, wait)}, wait)[0].content is not None

    def find(self, wanted: Sequence[str]) -> None:
        """Looks for sites; waits while nodes that were greeted lately may turn out to be missing ones."""
        self.look()

        def hopeful() -> bool:
            return any(node not in self._silent for node, _ in self._greeted.values())

        while hopeful() and any(site not in self.nodes for site in wanted):
            time.sleep(self.patience.poll)
            self._hear()

    # Sending and receiving.

    def deliver(self, letters: dict[Any, Message], timeout: float) -> dict[Any, Post]:
        """Sends the letters and waits for their replies, at most `timeout` seconds; one Post for every letter."""
        if not letters:
            return {}
        posts = {of: Post(None, None, "late", f"no reply within {timeout:g} s") for of in letters}
        ids = self._push(list(letters.values()))
        pending = {i: of for i, of in zip(ids, letters, strict=True) if i}
        for of in letters.keys() - pending.values():
            posts[of] = Post(None, None, "network", "the message could not be sent")
        end = time.monotonic() + timeout
        while pending:
            for reply in self._pull(list(pending)):
                # Replies name the node that sent them, and sometimes the wrong one; what they reply to is right.
                of = pending.pop(reply.metadata.reply_to_message_id, None)
                if of is not None:
                    posts[of] = opened(reply, posts[of])
            if time.monotonic() >= end:
                break
            if pending:
                time.sleep(self.patience.poll)
        return posts

    def ask(self, question: str, value: str = "", *, everyone: bool = True) -> dict[str, str]:
        """What every site answers to a question that is no exchange (`Participant.answers`).

        All have to answer, unless `everyone` is False: then those who do not are noted.
        """
        require(question.isidentifier(), f"'{question}' cannot be asked; give a name like 'statistics'")
        self.find(self.sites)
        self.where = (self.where[0], question)
        found = [site for site in self.sites if site in self.nodes]
        wait = self.patience.question
        posts = self.deliver({s: self._question(question, value, self.nodes[s], wait) for s in found}, wait)
        answers = {s: read_text(post.content, "answer") for s, post in posts.items() if post.content is not None}
        for site in self.sites:
            if answers.get(site) is None:
                what, why = why_not(posts[site]) if site in posts else ("absent", "the site is not there")
                self.note(site, what, why)
                if everyone:
                    raise EquipoiseError(f"'{site}' did not answer '{question}': {why}")
        return {site: said for site, said in answers.items() if said is not None}

    def letter(self, content: RecordDict, site: str, *, round: int, ttl: float) -> Message:
        """An exchange's message to a site."""
        return Message(content, self.nodes[site], "train.exchange", ttl=max(ttl, 1.0), group_id=str(round))

    @staticmethod
    def _question(question: str, value: str, node: int, ttl: float) -> Message:
        return Message(text("question", value), node, f"query.{question}", ttl=max(ttl, 1.0))

    def _push(self, letters: list[Message]) -> list[str | None]:
        if not letters:
            return []
        try:
            ids: list[str | None] = list(self.grid.push_messages(letters))
        except Exception as error:
            self.note("", "network", f"messages could not be sent ({type(error).__name__}: {error})")
            ids = []
        return ids + [None] * (len(letters) - len(ids))

    def _pull(self, ids: list[str]) -> Iterator[Message]:
        """What has come; one reply that Flower itself cannot read does not take the others with it."""
        if not ids:
            return
        try:
            yield from list(self.grid.pull_messages(ids))
        except Exception as error:
            if len(ids) == 1:
                self.note("", "network", f"a reply could not be read ({type(error).__name__}: {plain(str(error))})")
                return
            for i in ids:
                yield from self._pull([i])


def opened(reply: Message, late: Post) -> Post:
    """What Flower delivered; `late` where it is only the news that it has thrown the message away."""
    if not reply.has_error():
        return Post(reply.content, reply)
    code, why = reply.error.code, plain(str(reply.error.reason))
    if code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE):
        return late
    if code == ErrorCode.NODE_UNAVAILABLE:
        return Post(None, reply, "absent", "its node has gone")
    return Post(None, reply, "failed", f"error {code}: {why}")


def why_not(post: Post) -> tuple[What, str]:
    """Why a post that is no answer is none."""
    if post.content is None:
        return post.what, post.why
    kinds: tuple[What, ...] = ("refused", "failed")
    for kind in kinds:
        said = read_text(post.content, kind)
        if said is not None:
            return kind, plain(said)
    return "broken", "the reply holds no answer"


def gather(
    grid: Grid, *, n: int | None = None, sites: Sequence[str] | None = None, patience: Patience | None = None
) -> Federation:
    """Waits for the sites of a run: those named, or else the first n, which are numbered by name.

    Sites that are named and do not come in time are absent until they do; without names all n have to come.
    """
    patience = patience or Patience()
    require((n is None) != (sites is None), "give the sites' names, or their number n")
    require(sites is None or len(set(sites)) == len(sites) > 0, f"the sites {sites} are not distinct; name each once")
    wanted = n if sites is None else len(sites)
    assert wanted is not None
    federation, end = Federation(grid, sites, patience), time.monotonic() + patience.gather
    federation.look()
    while len(federation.nodes) < wanted and time.monotonic() < end:
        time.sleep(patience.poll)
        federation.look()
    names, double = sorted(federation.nodes), [e for e in federation.events if e.what == "double"]
    require(not double, double[0].why if double else "")
    if sites is None:
        require(
            len(names) == n,
            f"{len(names)} sites came within {patience.gather:g} s ({', '.join(names)}) but the run is for {n}; start "
            "the missing ones, or name those that take part",
        )
        federation.sites, federation.anyone = tuple(names), False
    for site in federation.sites:
        if site not in federation.nodes:
            why = f"'{site}' did not come within {patience.gather:g} s; the run starts without it"
            federation.warn(site, "absent", why)
    return federation
