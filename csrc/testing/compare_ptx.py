"""Whether two versions of csrc/cuda are translated to the same device code, kernel by kernel.

A change of names, files or host code must not change what the device runs: then its PTX is the
same text, and nothing has to be timed again. Needs nvcc, but no GPU.

    cmake -S csrc -B BUILD -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON   # once for each version
    python csrc/testing/compare_ptx.py translate BUILD OUT [NAME ...]    # OUT/<target>-<source>.ptx
    python csrc/testing/compare_ptx.py compare OLD NEW [NAME ...]

NAME picks files whose name contains it. `compare` numbers symbols, labels and (virtual) registers
in the order of their appearance, so that names may change, and prints the kernels that only one of
both sides has; its exit status is 1 if there are any.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

SYMBOL = re.compile(r"\b_[A-Za-z0-9_$]{8,}|\$L__BB\d+_\d+|__local_depot\d+|\$str\d*|%[a-z]+\d+\b")
BODY = re.compile(
    r"^(?:\.visible |\.weak )*\.(?:entry|func)\b.*?^\}$", flags=re.MULTILINE | re.DOTALL
)
NAME = re.compile(r"(_Z\w+|_\w{8,})\(?")


def commands(build):
    """Of each CUDA object of a build: the name of its PTX, its command, and where that runs."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if not entry["file"].endswith(".cu"):
            continue
        words = shlex.split(entry["command"])
        target = re.search(r"CMakeFiles/(\w+)\.dir", entry["command"])[1]
        architecture = re.search(r"arch=(compute_\d+)", entry["command"])[1]
        if target == "_C_cuda":  # its first is older
            architecture = "compute_80"
        kept = [word for word in words if not word.startswith("--generate-code")]
        kept = kept[: kept.index("-o")]
        kept[kept.index("-c")] = "-ptx"
        name = f"{target}-{Path(entry['file']).stem}.ptx"
        yield name, [*kept, f"-arch={architecture}"], entry["directory"]


def kernels(text):
    """(name, body with its symbols numbered) of every kernel and device function of a PTX text."""
    for body in BODY.findall(text):
        numbers = {}

        def numbered(match, numbers=numbers):
            return numbers.setdefault(match[0], f"@{len(numbers)}")

        plain = re.sub(r"\s*//.*|\s*\.reg .*", "", body)
        plain = re.sub(r"^\.(visible|weak) ", "", plain)
        yield NAME.search(body)[1], SYMBOL.sub(numbered, plain)


def read(folder, names):
    """All kernels below a folder: their bodies, counted, and a mangled name of each body."""
    found, name_of = Counter(), {}
    for path in sorted(folder.glob("*.ptx")):
        if not names or any(name in path.name for name in names):
            for name, body in kernels(path.read_text()):
                found[body] += 1
                name_of[body] = (path.name, name)
    return found, name_of


def demangled(name):
    command = ["c++filt", name]
    full = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return full.removeprefix("void ").replace("bppsa::cuda::", "").split("(")[0]


def translate(args):
    args.out.mkdir(parents=True, exist_ok=True)
    for name, command, folder in commands(args.build):
        if not args.names or any(wanted in name for wanted in args.names):
            subprocess.run([*command, "-o", str(args.out.resolve() / name)], cwd=folder, check=True)


def compare(args):
    (old, old_names), (new, new_names) = read(args.old, args.names), read(args.new, args.names)
    for sign, left, names in (("-", old - new, old_names), ("+", new - old, new_names)):
        for body in left:
            file, name = names[body]
            print(f"{sign} {file}: {demangled(name)}: {body.count(';')} statements")
    print(f"{sum((old & new).values())} kernels equal, of {old.total()} and {new.total()}")
    sys.exit(old != new)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(required=True)
    for run, folders in ((translate, ("build", "out")), (compare, ("old", "new"))):
        action = actions.add_parser(run.__name__)
        for folder in folders:
            action.add_argument(folder, type=Path)
        action.add_argument("names", nargs="*")
        action.set_defaults(run=run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
