"""Speech Commands v0.01, ten keywords, as 32x32 log-mel spectrograms."""

import hashlib
import io
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from fedaccord.core.errors import DataError
from fedaccord.data import archives, npz, sources
from fedaccord.data.sets import DataSet, examples
from fedaccord.data.sources import Source

CLASSES = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
FEATURES = "sc_v0.01_10kw_logmel32_u8.npz"
SHA256 = "8536a9a68427849a19b2298c4f0655956eb5d7e177e9705096d24a2509f667d2"
OFFICIAL = "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.01.tar.gz"
OFFICIAL_SHA256 = "743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d"
DERIVED = "from_wavs.npz"

RATE, FFT, HOP, MELS, DECIBELS = 16_000, 2048, 512, 32, 80.0
TRAIN, VALIDATION, TEST = 0, 1, 2
SOURCE = Source("speech_commands", {FEATURES: SHA256})


def load() -> DataSet:
    """Load the features that are on this machine: the project's own, or those that `fetch` made from recordings."""
    found = sources.find(SOURCE)
    if found is not None:
        return from_features(found[FEATURES], FEATURES)
    derived = derived_file()
    if not derived.exists():
        raise DataError(
            "speech_commands: not on this machine; `fedaccord data fetch speech_commands` gets it. With no network, "
            f"put {FEATURES} into a folder speech_commands/ and point FEDACCORD_DATA at its parent, or fetch with "
            "--from and a folder of recordings"
        )
    try:
        seal = derived.with_suffix(".sha256").read_text().strip()
    except (OSError, ValueError) as error:
        raise DataError(f"{derived}: its .sha256 cannot be read; delete it and fetch it again") from error
    return from_features(sources.read_verified(derived, seal), str(derived))


def derived_file() -> Path:
    return sources.cache_folder() / SOURCE.name / DERIVED


def fetch(wavs: Path | None = None) -> Path:
    """Make the features from recordings, a folder of word folders or the official archive (1.5 GB), and keep them."""
    derived = derived_file()
    with sources.full_disk_named(SOURCE.name):
        with tempfile.TemporaryDirectory(prefix="fedaccord-") as scratch:
            if wavs is None:
                wavs = sources.download(OFFICIAL, Path(scratch))
                sources.verify_file(wavs, OFFICIAL_SHA256)
            data = features(recordings_in(wavs))
        seal = hashlib.sha256(data).hexdigest().encode()
        sources.write_atomically({derived.with_suffix(".sha256"): seal, derived: data})
    return derived.parent


def from_features(data: bytes, label: str) -> DataSet:
    """Parse the .npz of features: X (clips, 32, 32) uint8, y, split (0 train, 1 validation, 2 test), speaker."""
    try:
        arrays = npz.read(io.BytesIO(data), "it cannot be read")
        pixels, targets, split, speaker = (arrays[key] for key in ("x", "y", "split", "speaker"))
    except (DataError, KeyError) as error:
        raise DataError(f"{label}: truncated, corrupt or without X, y, split and speaker: {error}") from error
    if pixels.shape[1:] != (MELS, MELS) or pixels.dtype != np.uint8:
        raise DataError(f"{label}: clips of {pixels.dtype} and shape {pixels.shape[1:]}, expected uint8 and 32 x 32")
    for each in (targets, split, speaker):
        if each.ndim != 1 or each.dtype.kind not in "iu":
            raise DataError(f"{label}: {each.dtype} of shape {each.shape}, expected an integer for each clip")
    if not len(pixels) == len(targets) == len(split) == len(speaker):
        raise DataError(f"{label}: {len(pixels):,} clips but {len(targets):,} labels, {len(split):,} split marks")
    pixels = pixels[:, None]
    train, test = split == TRAIN, split == TEST
    return DataSet(
        examples(pixels[train], targets[train], len(CLASSES), label),
        examples(pixels[test], targets[test], len(CLASSES), label),
        CLASSES,
        owner=speaker[train].astype(np.int64),
    )


def spectrogram(wave: np.ndarray) -> np.ndarray:
    """Convert a clip at 16 kHz to (32, 32) uint8: dB = value * 80 / 255 - 80, relative to the clip's maximum."""
    try:
        import librosa
    except ImportError as error:
        raise DataError("features from recordings need the audio extra: pip install 'fedaccord[audio]'") from error
    clip = np.zeros(RATE, np.float32)
    clip[: min(RATE, len(wave))] = wave[:RATE]
    power = librosa.feature.melspectrogram(y=clip, sr=RATE, n_fft=FFT, hop_length=HOP, n_mels=MELS)
    decibels = librosa.power_to_db(power, ref=np.max, top_db=DECIBELS)
    return np.clip(np.rint((decibels + DECIBELS) * 255 / DECIBELS), 0, 255).astype(np.uint8)


def which_split(file_name: str) -> int:
    """Return a file's split by the data set's own rule: a hash of the speaker, whose clips all fall on one side."""
    digest = hashlib.sha1(speaker_of(file_name).encode()).hexdigest()
    percent = int(digest, 16) % 2**27 * 100 / (2**27 - 1)
    return VALIDATION if percent < 10 else TEST if percent < 20 else TRAIN


def speaker_of(file_name: str) -> str:
    return file_name.rsplit("/", 1)[-1].split("_nohash_")[0]


def recordings_in(place: Path) -> Iterator[tuple[str, bytes]]:
    """Yield ("word/file.wav", bytes) of the ten keywords in a folder of word folders, or in a tar archive of one."""
    if not place.exists():
        raise DataError(f"{place}: there is no such folder")
    if place.is_dir():
        for word in CLASSES:
            for path in sorted((place / word).glob("*.wav")):
                yield f"{word}/{path.name}", archives.read_file(path)
        return
    keywords = re.compile(rf"({'|'.join(CLASSES)})/[^/]*\.wav")
    yield from archives.members(place, lambda name: name if keywords.fullmatch(name) else None)


def sound(wav: bytes, name: str) -> np.ndarray:
    """Return the first second of a recording, whatever length its header claims."""
    try:
        import soundfile
    except ImportError as error:
        raise DataError("recordings need the audio extra: pip install 'fedaccord[audio]'") from error
    if wav[:4] != b"RIFF" or wav[8:12] != b"WAVE":  # other formats could unpack to anything
        raise DataError(f"{name}: not a sound file: expected a .wav file")
    try:
        with soundfile.SoundFile(io.BytesIO(wav)) as file:
            if file.samplerate != RATE or file.channels != 1:
                told = f"{file.channels} at {file.samplerate} Hz"
                raise DataError(f"{name}: expected one channel at {RATE} Hz, got {told}")
            wave: np.ndarray = file.read(min(RATE, len(wav)), dtype="float32")
    except (soundfile.SoundFileError, ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{name}: not a sound file: {error}") from error
    return np.nan_to_num(wave, nan=0.0, posinf=1.0, neginf=-1.0) if not np.isfinite(wave).all() else wave


def features(recordings: Iterable[tuple[str, bytes]]) -> bytes:
    """Make an .npz of features from recordings, in the layout that `from_features` parses."""
    names, pixels = [], []
    for name, wav in track(recordings, "spectrograms", console=Console(stderr=True)):
        wave = sound(wav, name)
        names.append(name)
        pixels.append(spectrogram(wave))
    if not names:
        raise DataError(f"no recordings found; expected folders {', '.join(CLASSES)} with .wav files")
    speakers = sorted({speaker_of(name) for name in names})
    number = {speaker: i for i, speaker in enumerate(speakers)}
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        X=np.stack(pixels),
        y=np.array([CLASSES.index(name.split("/")[0]) for name in names], np.uint8),
        split=np.array([which_split(name) for name in names], np.uint8),
        speaker=np.array([number[speaker_of(name)] for name in names], np.int64),
        fname=np.array(names),
        classes=np.array(CLASSES),
    )
    return buffer.getvalue()
