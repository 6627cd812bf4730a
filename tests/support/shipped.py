"""The configurations that are shipped."""

from spag_ray.config.loading import config_root

SHIPPED = sorted(path for path in config_root().glob("*.yaml"))
