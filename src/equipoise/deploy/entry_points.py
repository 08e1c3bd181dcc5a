"""What Flower loads at the server and at every site."""

from equipoise.deploy.server.run import main
from equipoise.deploy.site.app import client_app, server_app
from equipoise.deploy.site.oversight import rejected
from equipoise.deploy.site.run import QUESTIONS, open_site

server = server_app(main)
client = client_app(open_site, questions=QUESTIONS, rejected=rejected)
