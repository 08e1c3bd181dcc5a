"""A site: its rows stay here, and one message in makes one reply out.

`messages.py` is the app that Flower calls: it answers a message and keeps what the next one needs. `run.py` is a site
of a configured run, with a table of its own: statistics and encoding, training and scoring. `owner.py` is what the
owner of the rows decides; `oversight.py` stands around every answer, with the policy and what is still allowed before
it, and the site's own log after it.
"""
