"""The process that checks are forked from imports this module, and with it what most of them need. It uses no GPU, and
has no threads but those of OpenBLAS, which outlive a fork. A library that cannot be imported is found by the checks
that need it.

It ends with the command: by itself it would wait for its forks, which hold the pipe that tells it of the command's end.
"""

import contextlib
import os

from spag_ray.host.libraries import hidden
from spag_ray.host.processes import end_with

end_with(os.getppid())

# To see whether there is a GPU, torch would initialise CUDA, which no fork could use then. It can ask the driver.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
# What libraries print at their import belongs to no check.
_nowhere = os.open(os.devnull, os.O_WRONLY)
os.dup2(_nowhere, 1)
os.dup2(_nowhere, 2)

with hidden("sklearn"), contextlib.suppress(Exception):  # as in a learner's actor
    import learners.learner  # noqa: F401
