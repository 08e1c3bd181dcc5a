"""What Flower loads at the server and at every site."""

from equipoise.deploy.apps import client_app, server_app
from equipoise.deploy.oversight import rejected
from equipoise.deploy.server import main
from equipoise.deploy.site import QUESTIONS, open_site

server = server_app(main)
client = client_app(open_site, questions=QUESTIONS, rejected=rejected)
