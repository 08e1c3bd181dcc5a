"""What the commands start and stop: servers, sites, keys, processes and the live page.

`commands.py` is a server, a site, or a whole federation on one machine, with the page of a run that goes on;
`launch.py` the exact commands of Flower's programs, `keys.py` certificates and keys, `processes.py` the process of one
or more sites, and processes that end with the one that started them, which `guard.py` sees to.
"""
