"""The same algorithms over a network: Flower carries the messages of the exchanges."""

from equipoise.deploy.apps import client_app as client_app
from equipoise.deploy.apps import server_app as server_app
from equipoise.deploy.apps import site_name as site_name
from equipoise.deploy.client import Job as Job
from equipoise.deploy.client import Participant as Participant
from equipoise.deploy.events import Event as Event
from equipoise.deploy.events import GivenUp as GivenUp
from equipoise.deploy.events import Ledger as Ledger
from equipoise.deploy.events import Outcome as Outcome
from equipoise.deploy.events import ledger as ledger
from equipoise.deploy.rounds import Demands as Demands
from equipoise.deploy.rounds import Prepared as Prepared
from equipoise.deploy.rounds import prepare as prepare
from equipoise.deploy.rounds import serve as serve
from equipoise.deploy.secure import SecureSite as SecureSite
from equipoise.deploy.secure import SecureSums as SecureSums
from equipoise.deploy.sites import ConnectedSites as ConnectedSites
from equipoise.deploy.sites import FederationWarning as FederationWarning
from equipoise.deploy.sites import Patience as Patience
from equipoise.deploy.sites import gather as gather
