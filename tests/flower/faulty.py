"""A ClientApp around Equipoise's that goes wrong where a file tells it to: what sites can do to a federation.

$EQUIPOISE_TEST_FAULTS is a JSON file: {site: [[round, exchange, fault], ...]}.
"""

import json
import math
import os
import resource
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, Message, RecordDict
from flwr.clientapp import ClientApp

from equipoise.experiment.federated.apps import client

SLOW = 14.0  # seconds, longer than the deadline of the tests


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
        if fault == "raise":
            raise ZeroDivisionError
        if fault == "die":
            os._exit(9)
        if fault == "hang":
            time.sleep(SLOW)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if fault == "full":  # whatever is written now fails, as on a disk that is full
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            reply = client(message, context)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return Message(changed(reply, CHANGES[fault]), reply_to=message) if fault in CHANGES else reply


def planned(message, context):
    at = message.content.get("at")
    if at is None or at["part"] != "train":
        return None
    plan = json.loads(Path(os.environ["EQUIPOISE_TEST_FAULTS"]).read_text())
    for round, exchange, fault in plan.get(context.node_config["site"], ()):
        if (at["round"], at["exchange"]) == (round, exchange):
            return fault
    return None


app = Faulty()
