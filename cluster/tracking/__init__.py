"""Measurements, and where they are written: metrics.jsonl, Prometheus, TensorBoard, W&B, Grafana.

Tests of other names: tensorboard, wandb in test_tracking.py; grafana in test_dashboard.py; metric_registry,
recorder in test_metrics.py.
"""
