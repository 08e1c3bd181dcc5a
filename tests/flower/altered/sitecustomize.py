"""A machine that is not as it should be: loaded by Python at its start where this folder is on the path.

$EQUIPOISE_TEST_CLOCK: the seconds that its clock is ahead.
$EQUIPOISE_TEST_INLINE: the bytes from which on messages go as Flower's objects, as very large ones do.
$EQUIPOISE_TEST_POLL: the seconds that Flower's own node sleeps at most before it looks for messages again.
"""

import datetime
import importlib.util
import os
import sys
import time
from types import SimpleNamespace

AHEAD = float(os.environ.get("EQUIPOISE_TEST_CLOCK", "0"))
INLINE = os.environ.get("EQUIPOISE_TEST_INLINE")
POLL = os.environ.get("EQUIPOISE_TEST_POLL")
true_time, true_datetime = time.time, datetime.datetime


class Shifted(true_datetime):
    @classmethod
    def now(cls, tz=None):
        return true_datetime.fromtimestamp(time.time(), tz)


class Changed:
    """Changes a module when it is imported: importing it here would load JAX or Flower into every process."""

    def __init__(self, name, change):
        self.name, self.change = name, change

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.change(module)

        spec.loader.exec_module = exec_module
        return spec


def send_as_objects(transport):
    transport.INLINE = int(INLINE)


def sleep_less(node):
    node.time = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: time.sleep(min(seconds, float(POLL)))})


if AHEAD:
    time.time = lambda: true_time() + AHEAD
    datetime.datetime = Shifted
if INLINE:
    sys.meta_path.insert(0, Changed("equipoise.deploy.wire.transport", send_as_objects))
if POLL:
    sys.meta_path.insert(0, Changed("flwr.supernode.start_client_internal", sleep_less))
