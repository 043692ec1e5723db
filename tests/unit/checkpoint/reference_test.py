#!/usr/bin/env python3
"""What the reference implementation of safetensors reads of a checkpoint's folder.

Usage: reference_test.py TEST_PROGRAM [unittest's arguments]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
    from safetensors import safe_open
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = sys.argv.pop(1)


class ReferenceTest(unittest.TestCase):
    def setUp(self):
        self.run_folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.run_folder.cleanup)
        subprocess.run([PROGRAM, "--gtest_filter=Reference.*"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "TESSERA_CHECKPOINT": self.run_folder.name})
        self.folder = Path(self.run_folder.name) / "step_000100"

    def read(self):
        """{entry: (file, tensor)} of all parts."""
        found = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(path, "pt") as part:
                self.assertEqual(part.metadata(), {"format": "pt", "save_number": "0000000000001298"})
                for name in part.keys():
                    self.assertNotIn(name, found)
                    found[name] = (path.name, part.get_tensor(name))
        return found

    def test_every_part_opens(self):
        found = self.read()
        self.assertEqual(set(found), {
            "h.weight", "h.bias", "step", "random", "exp_avg/h.bias[0:2]", "exp_avg/h.bias[2:4]",
            "exp_avg/h.weight[0:4, 0:2]", "exp_avg/h.weight[0:4, 2:4]", "exp_avg/h.weight[0:4, 4:6]"})
        self.assertEqual({name: tensor.dtype for name, (_, tensor) in found.items() if "[" not in name}, {
            "h.weight": torch.float32, "h.bias": torch.bfloat16, "step": torch.int64, "random": torch.uint8})
        self.assertEqual(found["random"][1].shape, (0, 3))

    def test_slices_are_those_of_their_names(self):
        found = self.read()
        whole = torch.cat([found[f"exp_avg/h.weight[0:4, {at}:{at + 2}]"][1] for at in (0, 2, 4)], 1)
        self.assertTrue(torch.equal(whole, whole[0, 0] + torch.arange(24.0).reshape(4, 6)))
        whole = found["h.weight"][1]
        self.assertTrue(torch.equal(whole, whole[0, 0] + torch.arange(24.0).reshape(4, 6)))

    def test_the_index_says_where_parameters_are(self):
        index = json.loads((self.folder / "model.safetensors.index.json").read_text())
        found = self.read()
        self.assertEqual(set(index["weight_map"]), {"h.weight", "h.bias"})
        for name, file in index["weight_map"].items():
            self.assertEqual(found[name][0], file)
        self.assertEqual(index["metadata"]["total_size"], sum(found[name][1].nbytes for name in index["weight_map"]))

    def test_documents_are_json(self):
        for path in self.folder.glob("*.json"):
            json.loads(path.read_text())
        self.assertEqual(json.loads((self.folder / "manifest.json").read_text())["step"], 100)


if __name__ == "__main__":
    unittest.main()
