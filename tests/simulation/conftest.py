"""The search in this folder has a time and seeds as those in `tests/adversary` have."""

from __future__ import annotations

from tests.adversary.conftest import pytest_runtest_makereport, search

__all__ = ["pytest_runtest_makereport", "search"]
