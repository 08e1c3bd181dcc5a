"""What crosses between server and sites, and how it travels.

`messages.py` reads off an algorithm what it exchanges and makes Flower's messages of it, `secure.py` masks sums, of
which the server sees no part. `transport.py` chooses between Flower's own way and messages with their content inside,
`warm.py` keeps sites connected, `superlink.py` and `serverapp.py` are a server that serves its run itself; what these
use of Flower's inside stands in `internals.py`.
"""
