"""A ClientApp around Equipoise's that goes wrong where a file tells it to: what sites can do to a federation.

$EQUIPOISE_TEST_FAULTS is a JSON file: {site: [[round, exchange, fault], ...]}. A fault happens once, at the first
message of that exchange from that round on; "fail" happens at all of them. Beside it a file `paced` has sites take a
moment for every message: a run without end, of which a test waits for some event, would keep all cores busy.
"""

import json
import math
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, Message, RecordDict
from flwr.clientapp import ClientApp

from equipoise.deploy.site.run import client

LONGEST = 120.0  # seconds that a site hangs if nobody releases it
MOMENT = 0.05  # seconds


def changed(reply, change):
    record = reply.content["reply"]
    for name, old in list(record.items()):
        record[name] = change(old)
    return RecordDict({"reply": record})


def filled(value, only_scalars=False):
    def change(old):
        if only_scalars and old.shape:
            return old
        return Array(old.dtype, old.shape, old.stype, np.full(old.shape, value, old.dtype).tobytes())

    return change


def reshaped(old):
    return Array(old.dtype, (17,), old.stype, old.data)


CHANGES = {"nan": filled(math.nan), "shape": reshaped, "huge": filled(1e30, only_scalars=True)}


class Faulty(ClientApp):
    def __call__(self, message, context):
        fault = planned(message, context)
        if (plan_file().parent / "paced").exists():
            time.sleep(MOMENT)
        if fault in ("raise", "fail"):
            raise ZeroDivisionError
        if fault == "die":
            os._exit(9)
        if fault == "stop":  # the whole process, as if the network were cut
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "hang":
            end = time.monotonic() + LONGEST
            while time.monotonic() < end and not (plan_file().parent / "released").exists():
                time.sleep(0.05)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if fault == "full":  # whatever is written now fails, as on a disk that is full
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            reply = client(message, context)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return Message(changed(reply, CHANGES[fault]), reply_to=message) if fault in CHANGES else reply


def plan_file():
    return Path(os.environ["EQUIPOISE_TEST_FAULTS"])


def planned(message, context):
    at, site = message.content.get("at"), context.node_config["site"]
    step = message.content.get("question", {}).get("step")  # of a masked sum
    if step is not None:
        at = {"part": "train", "exchange": step, "round": (happened_at(site) or 0)}
    if at is None or at["part"] != "train":
        return None
    if step is None:
        (plan_file().parent / f"round-{site}").write_text(str(at["round"]))
    for round, exchange, fault in json.loads(plan_file().read_text()).get(site, ()):
        if at["exchange"] != exchange or at["round"] < round:
            continue
        if fault == "fail":
            return fault
        happened = plan_file().parent / f"happened-{site}-{fault}"
        if not happened.exists():
            happened.touch()
            return fault
    return None


def happened_at(site):
    """The round of the last message of training."""
    path = plan_file().parent / f"round-{site}"
    return int(path.read_text()) if path.exists() else None


app = Faulty()
