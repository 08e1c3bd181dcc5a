"""Federations of machines over Flower: the server and the sites of one algorithm, or of one configuration.

    server/         the rounds, who is connected, and a configured run from its settings to the run folder
    site/           a site's answers from its own rows, and what its owner decides about them
    wire/           what crosses between them, how it travels, and sums that are masked
    operations/     what the commands start and stop: processes, keys, certificates, the live page
    agreement.py    what server and sites know before the first round, and what both make of it
    flower.py       the public names, for algorithms of one's own

Sites whose model is PyTorch's are in `equipoise.pytorch`. Rows never leave a site. `docs/flower.md` says what does.
"""
