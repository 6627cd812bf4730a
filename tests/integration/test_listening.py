"""A local Ray with all of a run listens on loopback only."""

import os
from pathlib import Path

import psutil
import pytest
import ray

from cluster.learning.learner_group import LearnerGroup
from cluster.rollout.engine_actor import EngineActor
from cluster.runtime.ray_session import ray_session
from spag_ray.config.engine import EngineConfig
from spag_ray.config.parts import ClusterConfig, LearnerConfig
from spag_ray.config.run import RunConfig
from tests.support.listening import listening_at


@pytest.mark.parallel
@pytest.mark.timeout(280)
def test_a_local_ray_with_engines_listens_on_loopback_and_logs_no_secret(tiny_model: Path, tmp_path: Path) -> None:
    secret = "hf_that_no_log_may_have"
    environment = {"HF_TOKEN": secret}
    engine_config = EngineConfig(dtype="float32", max_model_len=512, kv_cache_gib=0.1, max_num_seqs=16, env=environment)
    learner_config = LearnerConfig(num_ranks=2, zero_stage=3, dtype="float32", num_cpus=0.5, env=environment)
    with ray_session(ClusterConfig(num_cpus=2, object_store_gib=0.3)):
        num_before = len(listening_at(psutil.Process()))
        learners = LearnerGroup(str(tiny_model), RunConfig(learner=learner_config), str(tmp_path))
        learners.start()
        engine = ray.remote(EngineActor).options(num_cpus=0.5, max_concurrency=64).remote(str(tmp_path / "engine.log"))
        ray.get(engine.start.remote(str(tiny_model), engine_config, "engine", 0, 0))
        for actor in (engine, ray.get_actor("learner-0")):
            assert ray.get(actor.__ray_call__.remote(lambda _: os.environ["HF_TOKEN"])) == secret
        listening = listening_at(psutil.Process())
        ray.get(engine.close.remote())
        ray.kill(engine)
        learners.close()
        session = Path(ray._private.worker._global_node.get_session_dir_path())
        logs = b"".join(path.read_bytes() for path in session.rglob("*") if path.is_file() and not path.is_symlink())
    assert len(listening) > num_before + 4, "the ranks' own Ray ports, their store, gloo's ports"
    assert set(listening) == {"127.0.0.1"}
    assert secret.encode() not in logs
    assert secret not in "".join(path.read_text() for path in tmp_path.glob("*.log"))
