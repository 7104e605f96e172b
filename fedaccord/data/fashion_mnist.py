"""Fashion-MNIST: 60,000 + 10,000 pictures of clothes, 28x28, in MNIST's format."""

import subprocess
from functools import partial
from pathlib import Path

from fedaccord.data import archives, idx, sources
from fedaccord.data.archives import Files
from fedaccord.data.sets import DataSet
from fedaccord.data.sources import Route, Source

FILES = {
    idx.TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    idx.TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    idx.TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    idx.TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
OFFICIAL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def registry(scratch: Path) -> Files:
    """Yield the files of the set from its Debian package, which is read as a tar stream, not installed."""
    sources.run_tool(["apt-get", "download", "dataset-fashion-mnist"], scratch)
    package = sources.only_file(scratch, "*.deb", "dataset-fashion-mnist")
    wanted = {f"usr/share/datasets/fashion-mnist/{name}.gz": name for name in FILES}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as unpack:
        assert unpack.stdout is not None  # it is a pipe
        for name, data in archives.members(unpack.stdout, wanted.get):
            yield name, archives.gunzip(data, name)


OFFICIALLY = Route("the official address", partial(sources.gzipped, OFFICIAL, FILES))
SOURCE = Source("fashion_mnist", FILES, (OFFICIALLY, Route("Debian's registry", registry)))


def load() -> DataSet:
    return idx.data_set(sources.load(SOURCE), CLASSES)
