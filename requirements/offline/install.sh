#!/usr/bin/env bash
# Installs spag-ray from the wheels beside this file, without a network.
#
#   ./install.sh [FOLDER]        FOLDER: of the new environment, default ./spag-ray-env; PYTHON=... picks the interpreter
set -euo pipefail
environment=${1:-spag-ray-env}
here=$(cd "$(dirname "$0")" && pwd)
version=$(cat "$here/python-version")
python=${PYTHON:-python$version}
fail() { echo "spag-ray: $1" >&2; exit 2; }

found=$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null) || fail "no $python here; name Python $version: PYTHON=/path/to/python$version $0"
[[ $found == "$version" ]] || fail "these wheels are for Python $version, $python is $found; name another: PYTHON=/path/to/python$version $0"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python has no venv module; install it (Debian, Ubuntu: python$version-venv) and run this again."
(cd "$here" && sha256sum --quiet --check SHA256SUMS) || fail "wheels in $here are incomplete or damaged; copy the folder again."
"$python" -m venv "$environment"
"$environment/bin/python" -m pip install --quiet --no-index --no-deps "$here"/wheels/*.whl
"$environment/bin/spag-ray" --version
echo "Done. Next: $environment/bin/spag-ray quickstart"
