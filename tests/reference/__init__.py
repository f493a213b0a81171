"""A second reader of recorded streams, by other means than the product's: the oracle."""
