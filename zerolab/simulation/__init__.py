"""The same engines on a fake rank of N: no memory, no network, timed by a cost model."""
