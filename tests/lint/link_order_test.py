"""Libraries and programs ask the loader for libstdc++ before libtorch.

Wheels of torch for CUDA export parts of a libstdc++ of their own that jump to nothing (cmake/TesseraTorch.cmake): a name of the
standard library must be found in the real one first.

link_order_test.py FILE...
"""

import re
import subprocess
import sys


def needed(file):
    said = subprocess.run(["readelf", "-d", file], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said)


def main(files):
    wrong = {file: found for file in files if not (found := needed(file)) or not found[0].startswith("libstdc++")}
    for file, found in wrong.items():
        print(f"{file}: the loader takes names from {', '.join(found)}, in this order; the first must be libstdc++")
    print(f"{len(files)} files, {len(wrong)} wrong")
    return len(wrong) != 0 or not files


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
