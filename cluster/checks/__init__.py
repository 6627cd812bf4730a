"""The checks that `spag-ray doctor` and every start make before anything is placed.

commands/doctor.py lists them.

Tests of other names: check_results, cluster_checks, node_report in test_doctor.py;
vllm_build in test_quickstart_gpu.py.
"""
