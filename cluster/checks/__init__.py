"""What `spag-ray doctor` and every start look at before anything is placed.

The list of them is in commands/doctor.py.

Tests of other names: check_results, cluster_checks, node_report in test_doctor.py.
"""
