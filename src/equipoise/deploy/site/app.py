"""Flower's two apps, made from plain functions."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from equipoise._jax import keep_programs
from equipoise.deploy.site.messages import (
    Open,
    Participant,
    answer_question,
    check_participant,
    guarded,
    prepare,
    take_step,
    work,
)
from equipoise.deploy.wire import secure
from equipoise.deploy.wire.envelope import greeting, plain, read_text, text
from equipoise.errors import require

log = logging.getLogger("equipoise.flower")
KEPT = 2  # settings for which a site that stays is kept open


def server_app(main: Callable[[Grid, Context], Any]) -> ServerApp:
    """A ServerApp that runs `main(grid, context)`, which gathers the sites and serves."""
    app = ServerApp()
    app.main()(main)
    return app


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
            sites[where] = (check_participant(open_site(context)), {})
            of_this_site = [key for key in sites if key[0] == where[0]]
            for old in of_this_site[:-KEPT]:
                del sites[old]
        return sites[where]

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        abilities = ["inline"] if context.node_config.get("inline") else []
        return Message(greeting(site_name(context), abilities), reply_to=message)

    @app.query("notice")
    def notice(message: Message, context: Context) -> Message:
        log.warning("the server says: %s", plain(read_text(message.content, "question") or ""))
        return Message(text("answer", ""), reply_to=message)

    def replying(kind: str, answer: Callable[[Participant, dict[str, Open], RecordDict], RecordDict]) -> Callable:
        def handle(message: Message, context: Context) -> Message:
            def answered() -> RecordDict:
                try:
                    site, opened = site_of(context)
                except Exception as error:
                    if rejected is not None:
                        rejected(context, kind, error)
                    raise
                with site.within():
                    return site.guard(kind, message.content, lambda: answer(site, opened, message.content))

            return Message(guarded(site_name(context), answered), reply_to=message)

        return handle

    app.train("exchange")(replying("exchange", work))
    app.query("prepare")(replying("prepare", prepare))
    app.query(secure.QUESTION)(replying(secure.QUESTION, take_step))
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
