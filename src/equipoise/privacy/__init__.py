"""What keeps the server from single sites, and a site from saying more than it wants to. No file here sends anything.

    fixed_point.py  totals as integers, whose sums are exact
    shamir.py       a secret in shares, any `threshold` of which give it back
    masks.py        keys, seeds and the streams that hide a site's integers
    site_masks.py   a site's side of a masked sum: what it answers, and what it refuses
    unmasking.py    the server's side: the sum, and nothing else
    identity.py     who the sites are, by keys that they gave each other
    disclosure.py   what a run tells the server, in sentences
    policy.py       what a site agrees to; audit.py its own record of every message that it answered
    accounting.py   epsilon and delta of Gaussian noise; what a site has spent, and its budget
    noise.py        noise of the site's own entropy

`docs/privacy.md` says what is promised, and against whom.
"""
