"""Tests that write files."""

import functools
import tempfile
from pathlib import Path


def in_folder(check):
    """A test that is given an empty folder, which is gone afterwards."""
    @functools.wraps(check)
    def test(self):
        with tempfile.TemporaryDirectory() as folder:
            check(self, Path(folder))
    return test
