"""`python -m spag_ray` is the command line. Only here this floor calls a higher one."""

from cluster.cli import main

main()
