"""Refuses the wrong torch before its libraries are loaded: another one has other classes behind the same names.

The builds of one release share their classes, so a tessera that was built for the CPU one runs on all of them. One that links
the CUDA libraries (for NCCL) needs the very build whose libraries those are.
"""

import torch

from tessera._built_for import LINKS_CUDA, TORCH_VERSION


def _release(version: str) -> str:
    return version.split("+")[0]


_found, _compared = str(torch.__version__), str if LINKS_CUDA else _release
if _compared(_found) != _compared(TORCH_VERSION):
    raise ImportError(f"tessera was built for torch {TORCH_VERSION}, and this is torch {_found}. Install that torch "
                      f"(pip install torch=={_compared(TORCH_VERSION)}), or build tessera again with this one "
                      "(pip install --no-build-isolation . in its sources)")
