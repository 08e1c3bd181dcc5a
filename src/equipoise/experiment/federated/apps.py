"""What Flower loads at the server and at every site; see `[tool.flwr.app]` in `bundle.py`."""

from equipoise.engines.flower import client_app, server_app
from equipoise.experiment.federated.server import main
from equipoise.experiment.federated.site import QUESTIONS, open_site

server = server_app(main)
client = client_app(open_site, questions=QUESTIONS)
