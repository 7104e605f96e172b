"""Measure the peak memory of a thousand clients of the CIFAR network with representation matching (theta_i on disk).

python benchmarks/thousand_clients.py
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fraction", type=float, default=0.02)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "fedaccord.cli", "run", "cifar10", "--method", "FA+RM", "--split", "iid"]
        command += ["--clients", str(arguments.clients), "--fraction", str(arguments.fraction)]
        command += ["--rounds", str(arguments.rounds), "--steps", "1", "--test-every", "1000", "--json"]
        command += ["--runs", scratch, "--name", "run"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        kept = os.path.join(scratch, "run", "private")
        files = [os.path.join(folder, name) for folder, _, names in os.walk(kept) for name in names]
        result = {
            "clients": arguments.clients,
            "peak_gib": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20, 2),
            "theta_files": len(files),
            "theta_mb_each": round(sum(map(os.path.getsize, files)) / max(1, len(files)) / 1e6, 1),
            "seconds": json.loads(output.splitlines()[-1])["seconds"],
        }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
