#!/usr/bin/env bash
# Writes a folder from which a machine without a network installs spag-ray: the wheels of a lock, spag-ray's own, and install.sh.
#
#   requirements/offline/bundle.sh LOCK OUT PYTHON        PYTHON: of the version that the other machine has
set -euo pipefail
lock=$1 out=$2 python=$3
root=$(cd "$(dirname "$0")/../.." && pwd)
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

wheel() { "$python" -m pip wheel --no-deps --wheel-dir "$out/wheels" "$@" >>"$out/pip.log" 2>&1; }
failed() {
    tail -n 20 "$out/pip.log" >&2
    echo "spag-ray: that step failed; the whole output is in $out/pip.log" >&2
    exit 2
}

rm -rf "$out"
mkdir -p "$out/wheels"
torch=$(grep '^torch==' "$lock")
echo "  $torch"
# That index is used only if the ordinary one has no CPU build; a build for GPUs is never replaced by one for CPUs.
wheel "$torch" || { [[ $torch == *+cpu ]] && wheel --index-url "$torch_index" "$torch"; } || failed
echo "  $(grep -c '^[a-zA-Z].*==' "$lock") locked packages; what has no wheel is built"
wheel -r <(grep -v '^torch==' "$lock") || failed
echo "  spag-ray itself"
wheel "$root" || failed
"$python" -c 'import sys; print(*sys.version_info[:2], sep=".")' >"$out/python-version"
cp "$root/requirements/offline/install.sh" "$out/"
(cd "$out" && sha256sum wheels/* >SHA256SUMS)
echo "Done: $(du -sh "$out" | cut -f1) in $out. Copy the folder, and there: $(basename "$out")/install.sh"
