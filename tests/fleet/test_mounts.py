"""keyfence says which files it never sees replaced, and names no others."""

from __future__ import annotations

import os
from pathlib import Path

from keyfence.fleet.mounts import mounts, unchanging

# As kubelet and Docker mount: the root within the file system, and the place in the container.
OF_A_POD = "/var/lib/kubelet/pods/6b1f/volumes/kubernetes.io~configmap/policy"
REVISION = f"{OF_A_POD}/..2026_07_01_12_00_00.123456789"


def listed(folder: Path, root: str, place: Path) -> dict[str, str]:
    """Returns the mounts of a system with this one."""
    file = folder / "mountinfo"
    file.write_text(
        "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
        f"36 22 8:1 {root} {str(place).replace(' ', chr(92) + '040')} ro,relatime - ext4 /dev/sda1 rw\n"
    )
    return mounts(file)


def test_a_file_that_is_mounted_by_itself_never_changes(tmp_path: Path) -> None:
    policy = tmp_path / "shop policy.yaml"
    policy.write_text("policy: shop\n")
    (found,) = unchanging([str(policy)], listed(tmp_path, f"{REVISION}/policy.yaml", policy))
    assert found.startswith(f"{policy} is mounted by itself (a Kubernetes subPath")
    assert found.endswith("mount the folder that holds it")


def test_a_folder_that_is_one_revision_of_a_configmap_never_changes(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a.yaml", "b.yaml")]
    (found,) = unchanging(files, listed(tmp_path, REVISION, tmp_path))
    assert found.startswith(f"{tmp_path} is a mount of one revision of a ConfigMap")


def test_a_whole_configmap_and_a_plain_mount_change(tmp_path: Path) -> None:
    revision = tmp_path / "..2026_07_01_12_00_00.123456789"
    revision.mkdir()
    (revision / "policy.yaml").write_text("policy: shop\n")
    (tmp_path / "..data").symlink_to(revision.name)
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    file = str(tmp_path / "policy.yaml")
    assert unchanging([file], listed(tmp_path, OF_A_POD, tmp_path)) == []
    assert unchanging([file], listed(tmp_path, "/srv", tmp_path)) == []


def test_a_system_without_a_list_of_mounts_has_none(tmp_path: Path) -> None:
    assert mounts(tmp_path / "missing") == {}


def test_the_list_of_this_system_is_read() -> None:
    assert os.path.realpath("/proc") in mounts()
