"""The server of `scaffpd_model`: what it keeps, how it judges a trial, and how it makes the next."""
