"""Where it all runs: everything that imports ray."""
