"""`python -m spag_ray` is the command line; the one place where this floor calls a higher one."""

from cluster.cli import main

main()
