"""Streams of other libraries: what streams_test.py runs as rank threads and, started by torchrun, as processes. A process prints its rank and, for each
batch, the numbers of the rows that it is given.

Usage: streams_program.py FOLDER MESH whole|split
"""

import io
import json
import sys
import tarfile
import warnings
from pathlib import Path

import tessera
import torch
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


def main(folder, mesh, reads):
    import webdataset

    tessera.join()
    loader = DataLoader(of_webdataset(folder, webdataset.split_by_node if reads == "split" else None), BATCH)
    try:
        found = numbers_in(tessera.shard_dataloader(loader, mesh))
    except RuntimeError as error:
        found = str(error)
    sys.stdout.write(json.dumps([tessera.rank(), found]) + "\n")  # at once: torchrun's processes do not buffer


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
