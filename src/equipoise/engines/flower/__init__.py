"""The same algorithms over a network: Flower carries the messages of the exchanges."""

from equipoise.engines.flower.apps import client_app as client_app
from equipoise.engines.flower.apps import server_app as server_app
from equipoise.engines.flower.apps import site_name as site_name
from equipoise.engines.flower.client import Job as Job
from equipoise.engines.flower.client import Participant as Participant
from equipoise.engines.flower.events import Event as Event
from equipoise.engines.flower.events import GivenUp as GivenUp
from equipoise.engines.flower.events import Ledger as Ledger
from equipoise.engines.flower.events import Outcome as Outcome
from equipoise.engines.flower.events import ledger as ledger
from equipoise.engines.flower.federation import Federation as Federation
from equipoise.engines.flower.federation import FederationWarning as FederationWarning
from equipoise.engines.flower.federation import Patience as Patience
from equipoise.engines.flower.federation import gather as gather
from equipoise.engines.flower.server import Demands as Demands
from equipoise.engines.flower.server import Prepared as Prepared
from equipoise.engines.flower.server import prepare as prepare
from equipoise.engines.flower.server import serve as serve
