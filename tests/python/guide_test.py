#!/usr/bin/env python3
"""Every Python block of the guide runs, in the order of its page.

Usage: guide_test.py [unittest's arguments]
"""

import importlib.util
import re
import unittest
import warnings
from pathlib import Path

from zoo import tf  # skips the test where transformers is missing

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
PAGES = ("python.md", "data.md", "accumulation.md", "differences.md", "transformers.md", "from-torch-distributed.md", "explain.md", "estimate.md", "recompute.md", "offload.md", "saving.md", "checkpoints.md", "optimizers.md", "sharded.md", "pipelines.md",
         *(["trainers.md", "accelerate.md"] if importlib.util.find_spec("accelerate") else []),
         *(["adapters.md"] if importlib.util.find_spec("peft") else []), *(["lightning.md"] if importlib.util.find_spec("pytorch_lightning") else []))


class GuideTest(unittest.TestCase):
    def test_the_pages_run(self):
        self.assertTrue(tf)
        for page in PAGES:
            blocks = re.findall(r"^```python\n(.*?)^```", (GUIDE / page).read_text(), re.MULTILINE | re.DOTALL)
            self.assertTrue(blocks)
            names = {"__name__": "guide"}
            for number, block in enumerate(blocks):
                with self.subTest(page=page, block=number):
                    exec(compile(block, f"{page}, block {number}", "exec"), names)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
