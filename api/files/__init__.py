"""Files between a client and the store: how one is found, comes in, goes out and goes away. Knows no route."""
