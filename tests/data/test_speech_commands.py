"""Spoken keywords: from recordings to features to a data set."""

import functools
import hashlib
import io
import os
import re
import tarfile
from pathlib import Path

import librosa
import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.core.errors import DataError
from fedaccord.data import catalog, sources
from fedaccord.data import speech_commands as sc
from fedaccord.data.sources import Source

pytestmark = [pytest.mark.slow, pytest.mark.anywhere]  # librosa takes seconds to load what it needs


def tone(hertz: float, seconds: float = 1.0, loudness: float = 0.5) -> np.ndarray:
    return (loudness * np.sin(2 * np.pi * hertz * np.arange(int(seconds * sc.RATE)) / sc.RATE)).astype(np.float32)


def noise(samples: int = sc.RATE) -> np.ndarray:
    return np.random.default_rng(0).normal(scale=0.1, size=samples).astype(np.float32)


def wav(wave: np.ndarray, rate: int = sc.RATE) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, rate, format="wav", subtype="PCM_16")
    return buffer.getvalue()


@functools.cache
def speaker_in(split: int, number: int = 0) -> str:
    """The first names (as hexadecimal as the real ones) whose hash falls on that side."""
    names = (f"{i:08x}" for i in range(1000))
    return [name for name in names if sc.which_split(f"{name}_nohash_0.wav") == split][number]


def small_recordings() -> dict[str, bytes]:
    """Two words of two training speakers, one of a validation and one of a test speaker."""
    places = [
        ("yes", speaker_in(sc.TRAIN, 1)),
        ("go", speaker_in(sc.TRAIN, 0)),
        ("yes", speaker_in(sc.VALIDATION)),
        ("stop", speaker_in(sc.TEST)),
    ]
    return {f"{word}/{speaker}_nohash_0.wav": wav(tone(300 * i + 300)) for i, (word, speaker) in enumerate(places)}


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def npz(**arrays: object) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


# --- the spectrogram ---


def slow_spectrogram(wave: np.ndarray) -> np.ndarray:
    """Frame by frame in float64: Hann window, power spectrum, mel filters, decibels below the maximum."""
    fft, hop = 2048, 512
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(fft) / fft)
    padded = np.pad(wave.astype(np.float64), fft // 2)
    frames = [padded[start : start + fft] * window for start in range(0, len(wave) + 1, hop)]
    power = np.abs(np.fft.rfft(frames)) ** 2  # (frames, frequencies)
    mels = librosa.filters.mel(sr=16_000, n_fft=fft, n_mels=32) @ power.T
    decibels = 10 * np.log10(mels / mels.max())
    return np.rint((np.maximum(decibels, -80) + 80) * 255 / 80)


def test_the_spectrogram_equals_a_slow_one():
    """To one unit: float32 there, float64 here, and both round."""
    wave = noise() * np.linspace(0, 1, sc.RATE, dtype=np.float32) ** 4  # from 80 dB down to the maximum
    difference = sc.spectrogram(wave) - slow_spectrogram(wave)
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("hertz", [250, 1000, 3000])
def test_a_tone_is_brightest_in_the_band_around_it(hertz):
    """32 bands have 34 corner frequencies; band b rises from corner b, peaks at b + 1 and falls to b + 2."""
    corners = librosa.mel_frequencies(34, fmin=0, fmax=sc.RATE / 2)
    expected = np.abs(corners[1:-1] - hertz).argmin()
    got = sc.spectrogram(tone(hertz))
    assert got.shape == (32, 32)  # 1 + 16000 // 512 = 32 frames
    assert got.dtype == np.uint8
    assert (got[:, 5:-5].argmax(axis=0) == expected).all()
    assert got.max() == 255  # 0 dB is the clip's own maximum


def test_loudness_does_not_matter():
    wave = noise() * np.linspace(0, 1, sc.RATE)
    loud, soft = sc.spectrogram(wave), sc.spectrogram(wave / 8)
    assert np.abs(loud.astype(int) - soft).max() <= 1  # only rounding


def test_half_the_amplitude_is_6_decibels_lower():
    """20 log10(1/2) = -6.02 dB, by 255/80 units a decibel = -19.2 units; each of the two is rounded."""
    wave = np.concatenate([tone(1000, 0.5, 0.5), tone(1000, 0.5, 0.25)])
    band = sc.spectrogram(wave).max(axis=0).astype(int)
    assert abs(band[5] - band[-6] - 19.2) <= 1


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0, 1.7])
def test_a_clip_is_padded_with_silence_or_cut_to_one_second(seconds):
    wave = noise(int(seconds * sc.RATE))
    second = np.zeros(sc.RATE, np.float32)
    second[: len(wave)] = wave[: sc.RATE]
    np.testing.assert_array_equal(sc.spectrogram(wave), sc.spectrogram(second))


# --- the set's own rule ---


def which_set(filename: str) -> str:
    """The function that is printed in the set's README, without TensorFlow's helpers."""
    max_num_wavs_per_class = 2**27 - 1
    base_name = os.path.basename(filename)
    hash_name = re.sub(r"_nohash_.*$", "", base_name)
    hash_name_hashed = hashlib.sha1(hash_name.encode()).hexdigest()
    percentage_hash = (int(hash_name_hashed, 16) % (max_num_wavs_per_class + 1)) * (100.0 / max_num_wavs_per_class)
    if percentage_hash < 10:
        return "validation"
    elif percentage_hash < (10 + 10):
        return "testing"
    return "training"


def test_which_split_is_the_sets_own_rule():
    """Three thousand speakers: a tenth, three hundred or so, on each of the two small sides."""
    names = [f"{sc.CLASSES[i % 10]}/{i:08x}_nohash_{i % 5}.wav" for i in range(3000)]
    sides = [["training", "validation", "testing"][sc.which_split(name)] for name in names]
    assert sides == [which_set(name) for name in names]


@given(st.sampled_from(sc.CLASSES), st.from_regex("[0-9a-f]{8}", fullmatch=True), st.integers(0, 9))
def test_all_recordings_of_a_speaker_fall_on_one_side(word, speaker, take):
    name = f"{word}/{speaker}_nohash_{take}.wav"
    assert sc.speaker_of(name) == speaker
    assert sc.which_split(name) == sc.which_split(f"yes/{speaker}_nohash_0.wav")


# --- recordings to features ---


def test_a_folder_and_a_tar_of_it_give_the_same_features(tmp_path):
    files = small_recordings()
    others = {"_background_noise_/hum.wav": b"", "bed/x_nohash_0.wav": b"", "yes/notes.txt": b"", "README.md": b""}
    folder = put(tmp_path / "wavs", files | others)
    # the archive in the folder's order, so that the rows are in the same order
    ordered = dict(sc.recordings_in(folder))
    assert ordered == files
    archive = tar(tmp_path / "wavs.tar.gz", others | {name: files[name] for name in ordered})
    assert dict(sc.recordings_in(archive)) == ordered
    assert sc.features(sc.recordings_in(folder)) == sc.features(sc.recordings_in(archive))


def test_features_hold_spectrogram_word_split_and_speaker_of_each_recording():
    files = small_recordings()
    with np.load(io.BytesIO(sc.features(files.items())), allow_pickle=False) as got:
        for row, (name, data) in enumerate(files.items()):
            assert got["fname"][row] == name
            assert got["classes"][got["y"][row]] == name.split("/")[0]
            assert got["split"][row] == sc.which_split(name)
            np.testing.assert_array_equal(got["X"][row], sc.spectrogram(soundfile.read(io.BytesIO(data))[0]))
        speakers = [name.split("/")[1].split("_")[0] for name in files]
        assert got["speaker"].tolist() == [sorted(speakers).index(speaker) for speaker in speakers]


def test_features_of_recordings_agree_with_a_slow_computation():
    """From the file's bytes on, to one unit of 80/255 dB: both sides round to it, and float32 is good to far less."""
    files = {**small_recordings(), "no/00000000_nohash_1.wav": wav(noise())}
    with np.load(io.BytesIO(sc.features(files.items())), allow_pickle=False) as made:
        for row, data in zip(made["X"], files.values(), strict=True):
            samples = np.frombuffer(data[44:], "<i2")  # behind the header of a plain WAV file
            assert len(samples) == sc.RATE
            assert np.abs(row - slow_spectrogram(samples / 2**15)).max() <= 1


def test_fetched_recordings_are_kept_and_loaded(tmp_path):
    folder = put(tmp_path, small_recordings())
    kept = catalog.fetch("speech_commands", folder)
    assert kept == catalog.where("speech_commands") == str(sources.cache_folder() / "speech_commands")
    got = sc.load()
    assert [got.classes[target] for target in got.train.targets] == ["yes", "go"]  # in the order of the ten words
    assert [got.classes[target] for target in got.test.targets] == ["stop"]  # the validation clip is in neither
    assert got.train.inputs.shape == (2, 1, 32, 32)
    assert len(set(got.owner.tolist())) == 2  # two speakers
    assert catalog.verify("speech_commands") == [
        "speech_commands: 2 + 1 examples of 1x32x32, 10 classes",
    ]
    assert catalog.fetch("speech_commands") == kept  # it is here: nothing to fetch


@pytest.mark.parametrize(
    ("recordings", "complaint"),
    [
        ({"yes/a.wav": b"no sound"}, "yes/a.wav: not a sound file"),
        ({"yes/a.wav": wav(tone(300))[:30]}, "yes/a.wav: not a sound file"),
        ({"yes/a.wav": wav(tone(300), 8000)}, "yes/a.wav: expected one channel at 16000 Hz, got 1 at 8000 Hz"),
        (
            {"yes/a.wav": wav(np.stack([tone(300)] * 2, axis=1))},
            "yes/a.wav: expected one channel at 16000 Hz, got 2 at 16000 Hz",
        ),
        ({}, "no recordings found; expected folders yes, no, up"),
        ({"bed/a.wav": wav(tone(300))}, "no recordings found; expected folders yes, no, up"),
    ],
    ids=["text", "truncated", "rate", "stereo", "empty", "other words"],
)
def test_recordings_that_do_not_fit_are_refused_with_their_name(recordings, complaint, tmp_path):
    (tmp_path / "wavs").mkdir()
    with pytest.raises(DataError, match=complaint):
        catalog.fetch("speech_commands", put(tmp_path / "wavs", recordings))
    assert catalog.where("speech_commands") == "not here yet"


def test_a_place_without_recordings_is_named(tmp_path):
    with pytest.raises(DataError, match=rf"^{tmp_path}/none: there is no such folder"):
        sc.fetch(tmp_path / "none")


@pytest.mark.parametrize("kept", [0, 40, 0.8])
def test_a_truncated_archive_of_recordings_is_named(kept, tmp_path):
    archive = tar(tmp_path / "wavs.tar.gz", small_recordings())
    whole = archive.read_bytes()
    archive.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    with pytest.raises(DataError, match=rf"^{archive}: truncated or corrupt archive"):
        sc.fetch(archive)


# --- features to a data set ---

FEATURES = {
    "X": np.random.default_rng(0).integers(0, 256, (6, 32, 32), dtype=np.uint8),
    "y": np.array([0, 1, 9, 3, 4, 5]),
    "split": np.array([0, 1, 2, 0, 2, 0]),
    "speaker": np.array([7, 8, 9, 7, 9, 5]),
}


def test_features_are_divided_by_their_split_marks(tmp_path, monkeypatch):
    data = npz(**FEATURES)
    monkeypatch.setattr(sc, "SOURCE", Source("speech_commands", {sc.FEATURES: hashlib.sha256(data).hexdigest()}))
    monkeypatch.setenv("FEDACCORD_DATA", str(put(tmp_path, {f"speech_commands/{sc.FEATURES}": data})))
    got = sc.load()
    np.testing.assert_array_equal(got.train.inputs[:, 0], FEATURES["X"][[0, 3, 5]])
    np.testing.assert_array_equal(got.test.inputs[:, 0], FEATURES["X"][[2, 4]])
    assert got.train.targets.tolist() == [0, 3, 5]
    assert got.test.targets.tolist() == [9, 4]
    assert got.owner.tolist() == [7, 7, 5]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (npz(**FEATURES)[:-40], "truncated, corrupt or without"),
        (b"", "truncated, corrupt or without"),
        (npz(**{key: FEATURES[key] for key in ("X", "y", "split")}), "truncated, corrupt or without .*speaker"),
        (npz(**FEATURES | {"y": np.array([{}] * 6)}), "truncated, corrupt or without .*Python objects"),
        (npz(**FEATURES | {"y": FEATURES["y"][:5]}), "6 clips but 5 labels, 6 split marks"),
        (npz(**FEATURES | {"y": FEATURES["y"] + 1}), "label 10 is out of range, expected 0 to 9"),
        (npz(**FEATURES | {"split": np.full(6, sc.TRAIN)}), "there are no examples"),
    ],
    ids=["truncated", "empty", "lacking", "pickled", "lengths", "label", "no test part"],
)
def test_features_that_do_not_fit_are_refused_with_the_files_name(data, complaint):
    with pytest.raises(DataError, match=rf"^some\.npz: {complaint}"):
        sc.from_features(data, "some.npz")


def damage(derived: Path) -> None:
    derived.write_bytes(derived.read_bytes()[:-1])


def unseal(derived: Path) -> None:
    derived.with_suffix(".sha256").unlink()


def scribble(derived: Path) -> None:
    derived.with_suffix(".sha256").write_bytes(b"\xff\xff")


@pytest.mark.parametrize("spoil", [damage, unseal, scribble])
def test_kept_features_that_were_changed_are_refused_with_the_files_name(spoil, tmp_path):
    sc.fetch(put(tmp_path, small_recordings()))
    spoil(sc.derived_file())
    with pytest.raises(DataError, match=rf"^{sc.derived_file()}: .*delete it and fetch it again"):
        sc.load()


def test_without_data_or_network_the_error_names_the_address():
    with pytest.raises(DataError, match=r"^speech_commands: not on this machine; `fedaccord data fetch"):
        sc.load()
    with pytest.raises(DataError, match=re.escape(f"{sc.OFFICIAL}: no answer")):
        catalog.fetch("speech_commands")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
    folder = sc.derived_file().parent
    folder.mkdir(parents=True)
    (folder / f".{sc.DERIVED}.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"speech_commands: no space left .*from_wavs\.npz"):
        sc.fetch(put(tmp_path, small_recordings()))
    assert list(folder.iterdir()) == []


# --- the real files ---


@pytest.fixture
def real_features(real_set) -> dict[str, np.ndarray]:
    real_set(sc.SOURCE)
    with np.load(io.BytesIO(sources.find(sc.SOURCE)[sc.FEATURES]), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def test_the_real_set_has_the_known_counts(real_set):
    real_set(sc.SOURCE)
    got = sc.load()
    assert (len(got.train), len(got.test)) == (18_538, 2_567)
    assert got.train.inputs.shape[1:] == (1, 32, 32)
    assert len(got.owner) == 18_538


def test_the_real_set_is_divided_by_its_own_rule(real_features):
    rule = [sc.which_split(name) for name in real_features["fname"].tolist()]
    np.testing.assert_array_equal(rule, real_features["split"])
    # one number for each speaker's name, the name being what the file name says
    speakers = map(sc.speaker_of, real_features["fname"].tolist())
    pairs = set(zip(speakers, real_features["speaker"].tolist(), strict=True))
    assert len(pairs) == len({name for name, _ in pairs}) == len({number for _, number in pairs}) == 1841


def test_features_of_the_original_recordings_agree_with_the_real_ones(real_set, real_features):
    """To one unit of 80/255 dB: both sides round to it. What everybody has is the slow computation above."""
    wavs = real_set(sc.SOURCE) / "sample_wavs"
    if not wavs.is_dir():
        pytest.skip("the sample recordings are not on this machine")
    with np.load(io.BytesIO(sc.features(sc.recordings_in(wavs))), allow_pickle=False) as file:
        made = {name: file[name] for name in file.files}
    row_of = {name: row for row, name in enumerate(real_features["fname"].tolist())}
    rows = [row_of[name] for name in made["fname"].tolist()]
    assert len(rows) == 120
    difference = np.abs(made["X"].astype(int) - real_features["X"][rows])
    assert difference.max() <= 1
    for name in ("y", "split"):
        np.testing.assert_array_equal(made[name], real_features[name][rows])
