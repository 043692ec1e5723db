"""Streams of other libraries: what streams_test.py reads on rank threads and, started by torchrun, in processes.

Usage: streams_program.py RUN...: the fields of Run as JSON
"""

import dataclasses
import io
import json
import tarfile
from pathlib import Path

import tessera
import torch
from runs import run_given
from tessera._rows import Ranks
from torch.utils.data import DataLoader

ROWS, SHARDS, BATCH = 23, 4, 6


def write_shards(folder):
    """The rows, in order, as lines of JSON and as tar files."""
    each = -(-ROWS // SHARDS)
    for shard in range(SHARDS):
        rows = [{"x": [float(i), 1.0], "label": i % 3} for i in range(shard * each, min((shard + 1) * each, ROWS))]
        Path(folder, f"{shard}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with tarfile.open(Path(folder, f"{shard}.tar"), "w") as tar:
            for row in rows:
                for extension, value in (("x.json", json.dumps(row["x"])), ("cls", str(row["label"]))):
                    data = value.encode()
                    entry = tarfile.TarInfo(f"{int(row['x'][0]):04d}.{extension}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))


def of_datasets(folder, shuffles=True):
    """A stream of `datasets`."""
    import datasets

    files = [str(Path(folder, f"{shard}.jsonl")) for shard in range(SHARDS)]
    stream = datasets.load_dataset("json", data_files=files, split="train", streaming=True, cache_dir=folder)
    return (stream.shuffle(seed=3, buffer_size=8) if shuffles else stream).with_format("torch")


def of_webdataset(folder, nodesplitter=None):
    """A stream of `webdataset`."""
    import webdataset

    urls = [str(Path(folder, f"{shard}.tar")) for shard in range(SHARDS)]
    stream = webdataset.WebDataset(urls, shardshuffle=False, nodesplitter=nodesplitter)
    return stream.decode().to_tuple("x.json", "cls").map_tuple(torch.tensor, int)


def numbers_in(loader):
    """Of each batch the rows' numbers."""
    return [(batch["x"] if isinstance(batch, dict) else batch[0])[:, 0].int().tolist() for batch in loader]


@dataclasses.dataclass
class Run:
    mesh: str
    folder: str
    splits: bool  # each process reads files of its own


def main(run):
    """Of each rank the numbers of the rows that it is given, batch by batch, or what it is told."""
    import webdataset

    tessera.join()
    loader = DataLoader(of_webdataset(run.folder, webdataset.split_by_node if run.splits else None), BATCH)
    try:
        found = numbers_in(tessera.shard_dataloader(loader, run.mesh))
    except RuntimeError as error:
        found = str(error)
    return [json.loads(text) for text in Ranks(tessera.Mesh(run.mesh)).exchange(json.dumps(found).encode())]


if __name__ == "__main__":
    run_given(main, Run)
