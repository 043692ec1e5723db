"""Adapters that are put on a placed model: they are placed as it is called next."""

import itertools

import torch
from torch.nn.modules.module import register_module_module_registration_hook, register_module_parameter_registration_hook

from tessera import _C

_registered = itertools.count(1)
_newest = [0]  # how many modules and parameters the program has registered, as far as anybody asks


def _note(module, name, value):
    _newest[0] = next(_registered)


register_module_module_registration_hook(_note)
register_module_parameter_registration_hook(_note)


class Added:
    """What was added to a placed model since it was looked at last. Nothing, while the program registers no module and no parameter."""

    def __init__(self):
        self._seen = _newest[0]

    def place(self, passes, model):
        """Collective over the plan's mesh, where there is any."""
        if self._seen != _newest[0]:
            self._seen = _newest[0]
            _C.place_added(passes, model)
