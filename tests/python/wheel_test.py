#!/usr/bin/env python3
"""The wheel of a build tree, installed by pip where torch is elsewhere, is all that a program needs, and refuses another torch.

Usage: wheel_test.py [unittest's arguments]
"""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import venv
import zipfile
from pathlib import Path

if any(importlib.util.find_spec(name) is None for name in ("pip", "scikit_build_core", "torch")):
    print("skipped: pip and the packages of requirements.txt are not all there")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(importlib.util.find_spec("tessera").origin).parents[2]
PACKAGES = Path(importlib.util.find_spec("torch").submodule_search_locations[0]).parent

TWO_RANKS = """
import sys, tessera, torch
from importlib.metadata import version
assert sys.prefix in tessera.__file__, tessera.__file__
assert tessera.__version__ == version("tessera"), tessera.__version__
x = torch.arange(12.0).reshape(4, 3)
def body():
    mesh = tessera.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    rows = tessera.distribute_tensor(x, mesh, [tessera.Shard(0)])
    assert rows.to_local().shape == (2, 3)
    return (rows @ rows.T).full_tensor()
assert torch.equal(tessera.run_ranks(body, 2), x @ x.T)
print("equal")
"""

# Refused before anything of tessera's is loaded: with another torch that may crash.
REFUSED = """
import sys
try:
    import tessera
except ImportError as error:
    assert "tessera._C" not in sys.modules
    print(error)
"""


def run(*command, **options):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        run(*pip, "wheel", ROOT, "--no-deps", "--no-index", "--no-build-isolation", "-w", cls.folder, "-C", f"build-dir={cls.folder / 'tree'}",
            "-C", "cmake.source-dir=cmake/prebuilt", "-C", f"cmake.define.TESSERA_BUILT={BUILD}")
        (cls.wheel,) = cls.folder.glob("tessera-*.whl")
        venv.create(cls.folder / "venv", symlinks=True)
        cls.bin = cls.folder / "venv" / "bin"
        (cls.site,) = (cls.folder / "venv" / "lib").glob("python*/site-packages")
        (cls.site / "torch_elsewhere.pth").write_text(f"{PACKAGES}\n")
        run(*pip, "--python", cls.bin / "python", "install", "--no-deps", "--no-index", cls.wheel)

    def python(self, program):
        return run(self.bin / "python", "-c", program, cwd=self.folder)

    def test_it_holds_what_runs_and_nothing_else(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        sources = {f"tessera/{path.name}" for path in (ROOT / "python" / "tessera").iterdir() if path.is_file()}
        extension = "tessera/_C" + sysconfig.get_config_var("EXT_SUFFIX")
        self.assertEqual(held, sources | {"tessera/_built_for.py", "tessera/bin/tessera", "tessera/lib/libtessera.so.0", extension})
        self.assertIn("tessera/py.typed", held)

    def test_pip_is_told_the_torch(self):
        import torch

        told = self.python("from importlib.metadata import requires; print(*requires('tessera'))")
        self.assertEqual(told.strip(), "torch==" + torch.__version__.split("+")[0])
        pins = (ROOT / "requirements.txt").read_text().split()
        built_by = re.search(r"^requires = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE).group(1)
        self.assertLessEqual(set(re.findall(r'"(.*?)"', built_by)), set(pins))

    def test_no_file_names_the_folders_of_the_build(self):
        for path in (self.site / "tessera").rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                for folder in (PACKAGES, BUILD):
                    self.assertNotIn(bytes(folder), path.read_bytes(), path)

    def test_a_program_on_two_ranks(self):
        self.assertEqual(self.python(TWO_RANKS), "equal\n")

    def test_the_command(self):
        info = run(self.bin / "tessera", "info", cwd=self.folder)
        self.assertRegex(info, r"tessera +\d+\.\d+\.\d+\nlibtorch +\d+\.\d+\.\d+")
        self.assertEqual(run(self.bin / "python", "-m", "tessera", "info", cwd=self.folder), info)
        self.assertIn("[0] libtorch", run(self.bin / "tessera", "launch", "-n", "2", "--", "info", cwd=self.folder))

    def test_beside_torch_the_program_finds_it(self):
        (self.site / "torch").symlink_to(PACKAGES / "torch")
        self.addCleanup((self.site / "torch").unlink)
        self.assertIn("libtorch", run(self.site / "tessera" / "bin" / "tessera", "info"))

    def test_another_torch_is_refused(self):
        self.assertEqual(self.python(REFUSED), "")
        refused = self.python("import torch; torch.__version__ = '2.99.0+cpu'" + REFUSED)
        self.assertRegex(refused, r"tessera was built for torch \d+\.\d+\.\d+\S*, and this is torch 2\.99\.0\+cpu\. .*pip install torch==\d")

    def test_builds_of_one_release(self):
        built_for = "import sys, types\nsys.modules['tessera._built_for'] = types.SimpleNamespace(VERSION='0', TORCH_VERSION='2.98.0{}', LINKS_CUDA={})\n"
        for built, links_cuda, found, is_refused in (("+cpu", False, "+cu130", False), ("+cu130", False, "+cpu", False), ("+cu130", True, "+cu130", False),
                                                     ("+cu130", True, "+cpu", True), ("+cu130", True, "+cu126", True)):
            with self.subTest(built=built, links_cuda=links_cuda, found=found):
                said = self.python(built_for.format(built, links_cuda) + f"import torch; torch.__version__ = '2.98.0{found}'" + REFUSED)
                self.assertEqual("tessera was built for torch 2.98.0+cu130, and this is torch" in said, is_refused, said)


if __name__ == "__main__":
    unittest.main()
