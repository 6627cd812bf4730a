#!/bin/bash
# One run on two or more SLURM nodes: sbatch docs/examples/slurm.sh CONFIG /shared/runs/one [-o key=value]...
# The nodes share the run's folder and the environment that this is submitted from (spag-ray and ray on the PATH).
#SBATCH --job-name=spag
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# 120 s before the time limit, and on preemption where the cluster sends this signal first (send_user_signal):
#SBATCH --signal=B:USR1@120
# For GPUs: #SBATCH --gpus-per-node=8
set -euo pipefail
if (($# < 2)); then
    echo "usage: sbatch $0 CONFIG RUN_DIR [-o key=value]..." >&2
    exit 2
fi
config=$1 folder=$2
shift 2

port=${SPAG_RAY_PORT:-6379}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p) # `head` would not read the rest: SIGPIPE
address=$first:$port
pid_file=$folder.$SLURM_JOB_ID.pid
mkdir -p "$(dirname "$folder")"
rm -f "$pid_file"

# Slow nodes have 300 s to start: the first one waits so long for the others, and they for the first.
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300 RAY_py_gcs_connect_timeout_s=300
# The others end 20 s after the first one, not a minute: the job is queued again when all have ended.
export RAY_gcs_rpc_server_reconnect_timeout_s=20
# A killed engine's processes end with it.
export RAY_process_group_cleanup_enabled=true

# The token is in ~/.ray, which the nodes share. Without the mode the first node would require a token that it finds
# there, and the others would send none.
export RAY_AUTH_MODE=token
ray get-auth-token --generate >/dev/null

# The path of a socket has at most 107 characters, of which Ray's need 68 below this folder. SLURM's may be longer.
temporary=${RAY_TMPDIR:-${TMPDIR:-/tmp}}
((${#temporary} <= 39)) || export RAY_TMPDIR=/tmp TMPDIR=/tmp

# Ray starts on every node, the command runs on the first one, and Ray stops when it has ended.
# shellcheck disable=SC2016 # expanded by the inner shell
srun --kill-on-bad-exit=0 ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --disable-usage-stats -- \
    bash -c 'echo $$ >"$0" && exec spag-ray train "$@"' "$pid_file" \
    "$config" -o "cluster.address=$address" --run-dir "$folder" --resume "$@" &
step=$!

# The notice comes to this shell, on the first node. It passes it on to the run's driver, which is on the same node, and
# to nothing else: a signal to the step would end Ray on the other nodes before a checkpoint is saved.
noticed='' interrupted=''
# shellcheck disable=SC2329 # the trap calls it
notice() {
    noticed=yes interrupted=yes
    echo "notice to stop: the run saves a checkpoint and ends"
    kill -TERM "$(cat "$pid_file" 2>/dev/null || echo "$step")" || true
}
trap notice USR1 TERM

interrupted=yes
while [[ -n $interrupted ]]; do # the trap ends `wait` early
    interrupted='' code=0
    wait "$step" || code=$?
done
rm -f "$pid_file"
if [[ -n $noticed ]] && ! grep -qs finished "$folder/ended.json"; then
    echo "stopped before the end: queued again, and resumed from the newest checkpoint"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
