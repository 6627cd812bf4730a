"""How many engines there are: more or fewer by load, and away from nodes that Ray drains."""
