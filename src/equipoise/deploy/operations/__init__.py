"""What the commands start and stop: servers, sites, keys, processes and the live page.

`commands.py` is a server, a site, or a whole federation on one machine; `launch.py` the exact commands of Flower's
programs, `keys.py` certificates and keys, `processes.py` and `guard.py` processes that end with the one that started
them, `site_process.py` and `worker.py` the process of one or more sites, `page.py` the page of a run that goes on.
"""
