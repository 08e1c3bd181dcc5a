"""A site: its rows stay here, and one message in makes one reply out.

`app.py` is the app that Flower calls, `messages.py` answers a message and `memory.py` keeps what the next one needs.
`run.py` is a site of a configured run, with a table of its own: statistics and encoding; `training.py` is what it
trains and scores. `owner.py` is what the owner of the rows decides, `oversight.py` stands around every answer with the
policy before and the site's own log after, and `allowance.py` counts what a server may still ask.
"""
