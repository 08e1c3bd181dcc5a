"""The same algorithms over a network: Flower carries the messages of the exchanges."""

from equipoise.deploy.server.events import Event as Event
from equipoise.deploy.server.events import GivenUp as GivenUp
from equipoise.deploy.server.events import Ledger as Ledger
from equipoise.deploy.server.events import Outcome as Outcome
from equipoise.deploy.server.events import ledger as ledger
from equipoise.deploy.server.rounds import Demands as Demands
from equipoise.deploy.server.rounds import Prepared as Prepared
from equipoise.deploy.server.rounds import prepare as prepare
from equipoise.deploy.server.rounds import serve as serve
from equipoise.deploy.server.rounds import server_app as server_app
from equipoise.deploy.server.sites import ConnectedSites as ConnectedSites
from equipoise.deploy.server.sites import FederationWarning as FederationWarning
from equipoise.deploy.server.sites import Timeouts as Timeouts
from equipoise.deploy.server.sites import gather as gather
from equipoise.deploy.site.messages import Job as Job
from equipoise.deploy.site.messages import Participant as Participant
from equipoise.deploy.site.messages import client_app as client_app
from equipoise.deploy.site.messages import site_name as site_name
from equipoise.deploy.wire.secure import SecureSite as SecureSite
from equipoise.deploy.wire.secure import SecureSums as SecureSums
