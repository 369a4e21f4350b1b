"""The runtime of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.process.serving.runtime import Runtime
from keyfence.telemetry.telemetry import Telemetry


def test_certificates_that_are_being_replaced_end_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "keyfence.yaml"
    config.write_text('listeners: [{listen: "127.0.0.1:0", tls: {cert: gone.pem, key: gone.key}}]\n')
    runtime = Runtime(load_settings(config, Overrides(), needs_policy=False), None, Telemetry())
    runtime.renew_certificates()
    said = "gone.pem cannot be read: no such file or directory; the certificates in use stay"
    assert said in capsys.readouterr().err
