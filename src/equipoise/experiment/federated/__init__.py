"""A run whose clients are machines: the server and the sites of one configuration, over Flower.

    site.py       what a site does: tells statistics, takes the encoding, trains and scores on its own rows
    server.py     what the server does: gathers the sites, agrees, trains, writes the run folder
    agreement.py  what both know before the first round, and what both make of it
    scoring.py    how a model is evaluated: an exchange
    apps.py       Flower's two apps, which every node loads
    operations.py what the commands do: a server, a site, a whole federation on one machine
    worker.py     the process of warm sites
    launch.py     the exact commands of Flower's programs
    processes.py  processes that end with the one that started them (guard.py), and are started again when they crash
    status.py     what a run is doing, for people and programs; page.py shows it

Rows never leave a site. `docs/flower.md` says what does.
"""
