"""A run whose clients are machines: the server and the sites of one configuration, over Flower.

    site.py       what a site does: tells statistics, takes the encoding, trains and scores on its own rows
    server.py     what the server does: gathers the sites, agrees, trains, writes the run folder
    agreement.py  what both know before the first round, and what both make of it
    appraisal.py  how a model is looked at: an exchange
    apps.py       Flower's two apps, which every node loads

Rows never leave a site. `docs/flower.md` says what does.
"""
