"""`tessera`, or `python -m tessera`: the program in this package, on the torch that this Python imports."""

import os
import sys
from pathlib import Path

import torch


def main() -> None:
    """Becomes the program."""
    program = Path(__file__).parent / "bin" / "tessera"
    paths = [str(Path(torch.__file__).parent / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    os.execve(program, ["tessera", *sys.argv[1:]], os.environ | {"LD_LIBRARY_PATH": ":".join(paths), "TESSERA_PYTHON": sys.executable})


if __name__ == "__main__":
    main()
