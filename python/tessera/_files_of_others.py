"""What others wrote, read onto a mesh: folders of torch.distributed.checkpoint and of transformers, files of torch.save and of safetensors.

Each is a tree of tensors and values, whose leaves have paths: ("model", "0.weight"), ("optimizer", "state", 0, "exp_avg"). The model is
the branch with most of its names, the optimizer that with `param_groups`. Tensors come one after the other: one rank reads it, the others get
their parts.
"""

import json
import os
from pathlib import Path

import torch

from tessera import _C
from tessera._optimizer_values import named

# What DistributedDataParallel and torch.compile put before each name.
_WRAPPERS = ("module.", "_orig_mod.")


def load_others(path, model, optimizer):
    """(values, step) of a file or folder of others, loaded; None if it is a folder of tessera's, or nothing."""
    tree = _tree_at(path)
    if tree is None:
        return None
    tensors = _C.persistent_tensors(model)
    root = _root_of_optimizer(tree)
    paths = _paths_of_model(tree, model, tensors, root, path)
    state = _OptimizerState(tree, root, optimizer, tensors, path) if optimizer is not None else None
    paths += state.paths if state else []
    targets = [each.tensor for each in tensors] + (state.parts if state else [])
    _C.load_by_one(targets, lambda index: tree.tensor(paths[index]))
    if state:
        state.restore()
    values = _values(tree, root)
    return values, values.get("step") if isinstance(values.get("step"), int) else None


def _tree_at(path):
    if os.path.isfile(path):
        return _SafetensorsTree([path]) if path.endswith(".safetensors") else _TorchTree([path])
    folder = Path(path)
    if (folder / ".metadata").exists():
        return _DistributedTree(path)
    if is_run(path) or any((folder / name).exists() for name in ("manifest.json", "claim.json", "checkpoints")):
        return None
    for name, tree in (("model.safetensors", _SafetensorsTree), ("pytorch_model.bin", _TorchTree)):
        if (folder / name).exists():
            return tree([str(folder / name)])
        if (folder / f"{name}.index.json").exists():
            parts = json.loads((folder / f"{name}.index.json").read_text())["weight_map"].values()
            return tree([str(folder / part) for part in sorted(set(parts))])
    return None


def is_run(path):
    """Whether checkpoints of tessera are in the folder."""
    return any(Path(path).glob("step_*/manifest.json"))


# --- trees: `shapes` {path of a tensor: (dtype, sizes)}, tensor(path), `others` {path: value}

class _SafetensorsTree:
    def __init__(self, files):
        self.files = {(name,): (file, name) for file in map(_C.SafetensorsFile, files) for name in file.tensors}
        self.shapes = {path: file.tensors[name] for path, (file, name) in self.files.items()}
        self.others = {}

    def tensor(self, path):
        file, name = self.files[path]
        return file.read(name)


class _TorchTree:
    """Of files that are mapped into memory: what is not asked for is not read."""

    def __init__(self, files):
        self.leaves = {}
        for file in files:
            self.leaves.update(_leaves(torch.load(file, map_location="cpu", weights_only=True, mmap=_is_zip(file))))
        self.shapes = {path: (leaf.dtype, list(leaf.shape)) for path, leaf in self.leaves.items() if isinstance(leaf, torch.Tensor)}
        self.others = {path: leaf for path, leaf in self.leaves.items() if not isinstance(leaf, torch.Tensor)}

    def tensor(self, path):
        return self.leaves[path].detach()


def _is_zip(file):
    with open(file, "rb") as opened:
        return opened.read(2) == b"PK"


def _leaves(value, path=()):
    if isinstance(value, dict):
        return {leaf: each for key, item in value.items() for leaf, each in _leaves(item, (*path, key)).items()}
    if isinstance(value, (list, tuple)) and any(isinstance(item, (dict, torch.Tensor)) for item in value):
        return {leaf: each for i, item in enumerate(value) for leaf, each in _leaves(item, (*path, i)).items()}
    return {path: value}


class _DistributedTree:
    """Of torch.distributed.checkpoint; each rank reads the slices of a tensor that it is asked for."""

    def __init__(self, folder):
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        self.folder = folder
        metadata = FileSystemReader(folder).read_metadata()
        paths = metadata.planner_data or {}
        self.keys = {tuple(paths.get(key, (key,))): key for key in metadata.state_dict_metadata}
        kept = {path: metadata.state_dict_metadata[key] for path, key in self.keys.items()}
        self.shapes = {path: (about.properties.dtype, list(about.size)) for path, about in kept.items() if isinstance(about, TensorStorageMetadata)}
        self.others = self._read({self.keys[path]: None for path in kept if path not in self.shapes})

    def _read(self, state):
        import torch.distributed.checkpoint as dcp

        if state:
            dcp.load(state, checkpoint_id=self.folder, no_dist=True)
        return {path: state[key] for path, key in self.keys.items() if key in state}

    def tensor(self, path):
        dtype, sizes = self.shapes[path]
        return self._read({self.keys[path]: torch.empty(sizes, dtype=dtype)})[path]


# --- the model

def _text(path):
    return ".".join(map(str, path))


def _is_below(path, root):
    return root is not None and path[:len(root)] == root


def _names_below(tree, branch, wrapper, root):
    """{name: path} of the tensors of a branch, without those of the optimizer."""
    names = {_text(path[len(branch):]): path for path in tree.shapes if _is_below(path, branch) and not _is_below(path, root)}
    return {name.removeprefix(wrapper): path for name, path in names.items()}


def _branches(tree, root):
    """The branches that have tensors, those near the root first."""
    found = {path[:depth] for path in tree.shapes if not _is_below(path, root) for depth in range(len(path))}
    return sorted(found, key=lambda branch: (len(branch), list(map(str, branch))))


def _paths_of_model(tree, model, tensors, root, source):
    """The path of each of the model's tensors; throws with all that are missing, extra or misshapen."""
    known = named(tensors)
    best, most = _names_below(tree, (), "", root), 0
    for branch in _branches(tree, root):
        for wrapper in ("", *_WRAPPERS):
            names = _names_below(tree, branch, wrapper, root)
            if (count := sum(name in known for name in names)) > most:
                best, most = names, count
    base = f"{getattr(model, 'base_model_prefix', '')}."
    if most == 0 and base != "." and any(base + name in known for name in best):  # of the model without its head
        best = {base + name: path for name, path in best.items()}
    passing = {name for name, _ in model.named_buffers(remove_duplicate=False)} - set(known)  # older files have such too
    found = {name: tree.shapes[path] for name, path in best.items() if name not in passing}
    return [best[name] for name in _C.match_names(tensors, found, source)]


# --- the optimizer

def _root_of_optimizer(tree):
    for path in (*tree.others, *tree.shapes):
        for at, part in enumerate(path):
            if str(part).split(".")[0] == "param_groups":
                return path[:at]
    return None


class _OptimizerState:
    """A state_dict() of torch.optim in a tree, whose parameters are numbers, or names as get_state_dict of torch.distributed.checkpoint gives them.
    `parts` are to be loaded from `paths`; then restore() hands all to the optimizer."""

    def __init__(self, tree, root, optimizer, tensors, source):
        if root is None:
            raise RuntimeError(f'[checkpoint] "{source}" has no state of an optimizer; accepted: load(path, model), to load the model alone')
        self.tree, self.optimizer, self.source = tree, optimizer, source
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.state, self.groups = {}, [{} for _ in optimizer.param_groups]
        self.parts, self.paths = [], []
        entries = [(self._entry(path[len(root):]), path) for path in (*tree.others, *tree.shapes) if _is_below(path, root)]
        numbers = self._numbers([(entry, path) for entry, path in entries if entry[0] == "param_groups"], named(tensors))
        for (kind, owner, *key), path in entries:
            if kind == "state" and key:
                self._add_state(numbers, owner, key, path)

    @staticmethod
    def _entry(path):
        """("state", parameter, key...) or ("param_groups", group, option), also of names that are one text: state.0.weight.exp_avg."""
        if len(path) > 1:
            return path
        kind, _, rest = str(path[0]).partition(".")
        return (kind, *rest.rpartition(".")[::2]) if rest else (kind, None)

    def _numbers(self, entries, by_name):
        """{how the file calls a parameter: its number}; fills in the groups' options."""
        own = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        by_name = {name: own[id(tensor)] for name, tensor in by_name.items() if id(tensor) in own}
        numbers = {}
        if all(isinstance(owner, str) and not owner.isdigit() for (_, owner, *_), _ in entries):  # options of each parameter by its name
            numbers = {owner: by_name.get(owner) for (_, owner, *_), _ in entries}
            self._verify(set(numbers) == {*by_name} or set(numbers.values()) == set(own.values()), "other parameters than the optimizer")
            for (_, owner, option), path in entries:
                self.groups[self._group_of(numbers[owner])][option] = self._value(path)
            return numbers
        lists = {int(group): self._value(path) for (_, group, option, *_), path in entries if option == "params"}
        self._verify(sorted(lists) == list(range(len(self.groups))), f"{len(lists)} groups of parameters, the optimizer {len(self.groups)}")
        for (_, group, option, *_), path in entries:
            if option != "params":
                self.groups[int(group)][option] = self._value(path)
        for group, names in lists.items():
            members = self.optimizer.param_groups[group]["params"]
            self._verify(len(names) == len(members), f"{len(names)} parameters in group {group}, the optimizer {len(members)}")
            for name, member in zip(names, members):
                self._verify(not isinstance(name, str) or by_name.get(name) == own[id(member)], f"{name} in group {group} where the optimizer has another parameter")
                numbers[name] = numbers[str(name)] = own[id(member)]  # keys of dicts are texts in some files
        return numbers

    def _group_of(self, number):
        for index, group in enumerate(self.optimizer.param_groups):
            if number < len(group["params"]):
                return index
            number -= len(group["params"])

    def _verify(self, is_so, has):
        if not is_so:
            raise RuntimeError(f'[checkpoint] "{self.source}" has {has}; accepted: the same groups in the same order; nothing was changed')

    def _value(self, path):
        return self.tree.others[path] if path in self.tree.others else self.tree.tensor(path)

    def _add_state(self, numbers, owner, key, path):
        self._verify(owner in numbers, f"state of {owner}, which no group lists")
        if len(key) > 1:
            raise RuntimeError(f'[checkpoint] "{self.source}" has lists of tensors in the state of its optimizer ({_text(key)}); accepted: '
                               "optimizer.load_state_dict(...) of what torch.load gives; nothing was changed")
        parameter = self.parameters[numbers[owner]]
        dtype, sizes = self.tree.shapes.get(path, (None, []))
        if sizes:
            value = _C.zeros_for(parameter, sizes, dtype)
            self.parts.append(value), self.paths.append(path)
        else:
            value = self._value(path)
        self.state.setdefault(numbers[owner], {})[key[0]] = value

    def restore(self):
        groups, first = [], 0
        for own, options in zip(self.optimizer.param_groups, self.groups):
            kept = {key: value for key, value in own.items() if key != "params"}
            groups.append({**kept, **options, "params": list(range(first, first + len(own["params"])))})
            first += len(own["params"])
        self.optimizer.load_state_dict({"state": self.state, "param_groups": groups})


def _values(tree, root):
    """What is neither a tensor nor the optimizer's, as it was nested."""
    values = {}
    for path, value in tree.others.items():
        if path and not _is_below(path, root):
            branch = values
            for part in path[:-1]:
                branch = branch.setdefault(part, {})
            branch[path[-1]] = value
    return values
