"""How messages travel: trees of arrays on the wire, Flower's ways of carrying them, and sites that stay connected."""
