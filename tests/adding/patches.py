"""The patches of this folder, each of which adds one thing as docs/adding.md says: what they touch, and where they apply.

A patch begins with a sentence on what it adds and lines `run: TEST CASES`: what to build and run with it.
"""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent


class Patch:
    def __init__(self, path):
        self.path, self.name, text = path, path.stem, path.read_text()
        self.files = re.findall(r"^\+\+\+ b/(\S+)$", text, re.MULTILINE)
        self.new = re.findall(r"^--- /dev/null\n\+\+\+ b/(\S+)$", text, re.MULTILINE)
        self.runs = re.findall(r"^run: (\S+) (\S+)$", text, re.MULTILINE)  # (test, cases)

    def apply(self, root, *options):
        """Git's complaint, or nothing. `root` need not be a repository, and may stand in one."""
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.resolve().parent)}
        done = subprocess.run(["git", "apply", *options, self.path], cwd=root, env=environment, capture_output=True, text=True)
        return done.stderr if done.returncode else ""


def patches():
    return [Patch(path) for path in sorted(FOLDER.glob("*.patch"))]
