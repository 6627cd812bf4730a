"""Ray's token: whether this process uses one, and whether a cluster takes it.

`ray start --head` uses the token that it finds (RAY_AUTH_TOKEN, the file that RAY_AUTH_TOKEN_PATH names, or
~/.ray/auth_token) unless RAY_AUTH_MODE is set. So does every command here.
"""

from __future__ import annotations

import os
import re
import secrets

import grpc
from ray._private import ray_constants
from ray._private.authentication import authentication_token_setup
from ray._private.grpc_utils import init_grpc_channel
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from spag_ray.errors import SpagError

ANSWER_WITHIN_S = 10.0


class ClusterError(SpagError):
    """Ray could not be reached, or lacks something that the run needs."""


def no_token(address: str) -> ClusterError:
    """The error for a session that has no token, or another token than the cluster."""
    return ClusterError(
        f"{address} needs a token, and this session has none or a wrong one: put it into the file that "
        "RAY_AUTH_TOKEN_PATH names (or in RAY_AUTH_TOKEN), and set RAY_AUTH_MODE=token"
    )


def use_token() -> None:
    """Uses the token in this process and those that it starts, if there is a token and RAY_AUTH_MODE is not set."""
    if authentication_token_setup.AUTH_MODE_ENV_VAR in os.environ:
        return
    if AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
        authentication_token_setup._enable_token_auth()


def own_token() -> None:
    """Gives a Ray that is started here a token of its own, if there is none to use: Ray would write one into the home
    folder, where not every user may write (HOME=/ in a container)."""
    if os.environ.get(authentication_token_setup.AUTH_MODE_ENV_VAR, "token").lower() != "token":
        return
    loader = AuthenticationTokenLoader.instance()
    if not loader.has_token(ignore_auth_mode=True):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        loader.reset_cache()


def check_answer(address: str) -> None:
    """Asks the GCS at host:port for its name. Ray itself would retry for half a minute and warn each time.

    The token is used only if the cluster asks for one: a cluster without tokens cannot call a driver that uses one.
    Raises ClusterError if there is no answer, or the token is wrong.
    """
    if not re.fullmatch(r"[^/]+:\d+", address):  # Ray resolves `auto` and similar addresses
        return
    if _code(address) != grpc.StatusCode.UNAUTHENTICATED:
        return
    use_token()
    if _code(address) == grpc.StatusCode.UNAUTHENTICATED:
        raise no_token(address)


def _code(address: str) -> grpc.StatusCode:
    """Returns OK or UNAUTHENTICATED. Raises ClusterError for any other status."""
    channel = init_grpc_channel(address, ray_constants.GLOBAL_GRPC_OPTIONS)
    try:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        stub.GetClusterId(gcs_service_pb2.GetClusterIdRequest(), timeout=ANSWER_WITHIN_S, wait_for_ready=True)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            return error.code()
        raise ClusterError(
            f"cannot use {address}: no answer within {ANSWER_WITHIN_S:g} s ({error.details()}); is the "
            "cluster up, and the address right?"
        ) from error
    finally:
        channel.close()
    return grpc.StatusCode.OK
