"""What a piece of program does on this rank, operator by operator, and where a NaN comes from."""

import json
import os
import sys
import threading
import traceback
from pathlib import Path

from torch.nn.modules import module as torch_modules

from tessera import _C
from tessera._ranks import ensure_rank

# Lines in these packages are never an operator's: the program, and the models that it takes from others, are outside of them.
_PACKAGES = ("tessera", "torch")


class _Recording:
    """Stands around a piece of program, and tells `_recorder` which module of it runs."""

    def __enter__(self):
        ensure_rank()
        self._recorder = self._start()
        self._hooks = _ModuleHooks(self._recorder)
        return self

    def __exit__(self, kind, error, traceback):
        self._hooks.remove()
        self._recorder.stop()


class explain(_Recording):  # noqa: N801
    """Records the operators on DTensors of this rank:

        with tessera.explain() as report:
            model(**batch).loss.backward()
        print(report)

    Printed: the three redistributions most worth removing with the line to write, totals by module, and each operator with its
    layouts, the redistributions inserted for it, the bytes that this rank sent for them, its time, module and source line. Layers
    that differ in their number only are one. `report.data()` has all of it apart. The program's numbers stay the same; it is slower.
    """

    def _start(self):
        return _C.Explain(_line_finder())

    def text(self, width=160):
        """The tables, no line longer than `width`."""
        return self._recorder.text(width)

    def data(self):
        """Everything as dicts and lists: rank, world_size, bytes, seconds, redistributions, calls, modules, worst."""
        return json.loads(self._recorder.json())

    def __str__(self):
        return self.text()


class find_nan(_Recording):  # noqa: N801
    """Finds the first operator that makes a NaN, or an infinity, of operands that have none:

        with tessera.find_nan():
            model(**batch).loss.backward()

    That operator raises, and says its module, rank, source line and layouts; the other ranks are woken. With `report_only` the
    program goes on, and afterwards `first` says the same of all ranks' earliest (None if there was none); every rank must then
    come to the end of the block. Costs a pass over every result.
    """

    def __init__(self, report_only=False):
        self._report_only = report_only
        self.first = None

    def _start(self):
        return _C.NanFinder(not self._report_only, _line_finder())

    def __exit__(self, kind, error, traceback):
        super().__exit__(kind, error, traceback)
        if error is None:
            self.first = self._recorder.first()


class _ModuleHooks:
    """Tells `recorder` the dotted names of the modules whose forward the thread is in. Only while it is needed."""

    def __init__(self, recorder):
        self._recorder = recorder
        self._thread = threading.get_ident()
        self._names = {}
        self._depth = 0
        self._hooks = (torch_modules.register_module_forward_pre_hook(self._begin),
                       torch_modules.register_module_forward_hook(self._end, always_call=True))

    def remove(self):
        for hook in self._hooks:
            hook.remove()

    def _begin(self, module, args):
        if threading.get_ident() != self._thread:
            return
        if self._depth == 0:  # names count from the module that the program called
            self._names = {id(child): name for name, child in module.named_modules()}
        self._depth += 1
        self._recorder.enter(self._names.get(id(module)) or type(module).__name__)

    def _end(self, module, args, output):
        if threading.get_ident() == self._thread and self._depth > 0:
            self._depth -= 1
            self._recorder.leave()


def _hidden():
    """Where code is that is not the program's."""
    return tuple(f"{Path(sys.modules[name].__file__).parent}/" for name in _PACKAGES)


def _line_finder():
    """A function that says which line of the program calls the operator: `transformers/models/llama/modeling_llama.py:123`."""
    hidden = _hidden()
    names = {}  # of files

    def line():
        frame = sys._getframe(1)
        while frame is not None:
            path = frame.f_code.co_filename
            if not path.startswith(hidden) and not path.startswith("<"):
                if path not in names:
                    names[path] = _short_name(path)
                return f"{names[path]}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    return line


def line_of(error):
    """The line of the program that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    hidden = _hidden()
    own = [frame for frame in frames if not frame.filename.startswith(hidden)]
    return f"{_short_name(own[-1].filename)}:{own[-1].lineno}, `{own[-1].line}`" if own else ""


if _C.is_compared():
    _C.set_call_locate(_line_finder())


def _short_name(path):
    """The path below the installed packages, the current directory, or what Python imports from; else as it is."""
    packages = [folder for folder in sys.path if folder.endswith("-packages")]
    for folder in (*packages, os.getcwd(), *sys.path):
        if folder and path.startswith(folder + os.sep):
            return path[len(folder) + 1:]
    return path
