"""What the commands start and stop: servers, sites, keys, processes and the live page."""
