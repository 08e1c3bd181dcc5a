"""Federations of machines over Flower: the server and the sites of one algorithm, or of one configuration.

    flower.py      the public names, for algorithms of one's own
    exchanges.py   what an algorithm exchanges, read off its functions
    rounds.py      the server's side of the rounds; sites.py who is connected; events.py what happened
    client.py      a site's side: one message in, one reply out; memory.py what it must not forget
    secure.py      masked sums: the server relays keys and shares, and learns sums
    oversight.py   around every answer of a site: its policy before, its own log after
    apps.py        Flower's two apps, made from plain functions
    torch_site.py  a site whose model, loss and data are PyTorch's, by callback_task.py; torch_features.py its features
    network/       how messages travel, sites that stay connected, and a server that serves its run itself

    server.py      a configured run at the server, from its settings to the run folder
    reach_agreement.py  before the first round: who takes part, and what all agree on
    federated_run.py  the rounds, evaluations beside them, history and checkpoints
    convexified_run.py  between the two trainings of [convexify]: the network, the sums of its features
    site.py        a configured run at a site: statistics and encoding; rows_site.py training and scoring on its rows
    module_site.py  the same with a PyTorch module of the site's own; modules.py what the server knows of it
    agreement.py   what both know before the first round, and what both make of it; scoring.py the evaluation exchange
    status.py      what a run is doing, for people and programs; sentences.py the same for the report
    entry_points.py  what Flower loads
    operations/    what the commands start and stop

Rows never leave a site. `docs/flower.md` says what does.
"""
