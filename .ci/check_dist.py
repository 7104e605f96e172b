"""Check that every file of the package is in the wheel and in the sdist: `make dist`."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


def main(folder: Path) -> int:
    listed = subprocess.run(["git", "ls-files", "fedaccord"], capture_output=True, text=True, check=True).stdout
    wanted = set(listed.splitlines())
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as inside:
        packed = set(inside.namelist())
    with tarfile.open(sdist) as inside:
        source = {name.partition("/")[2] for name in inside.getnames()}
    for file, there in ((wheel, packed), (sdist, source)):
        missing, strange = wanted - there, {name for name in there if "__pycache__" in name}
        if missing or strange:
            print(f"{file}: missing {sorted(missing)}, should not be there {sorted(strange)}", file=sys.stderr)
            return 1
        print(f"{file}: all {len(wanted)} files of the package, {file.stat().st_size / 1e3:,.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
