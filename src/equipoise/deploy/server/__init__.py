"""The server: it gathers the sites, runs the rounds over them, and writes the same run folder as a local run.

`run.py` is a configured run from beginning to end; `reach_agreement.py` comes before its first round. `rounds.py` is
the server's side of the rounds of any algorithm, `sites.py` knows who is connected, and `lengths.py` leaves out replies
that are out of all proportion. `events.py` lists what happened and says it to people, `status.py` keeps it while a run
goes on.
"""
