#!/usr/bin/env python3
"""Makes small libraries in place of the CUDA ones that PyPI's torch is linked to.

    cuda_stubs.py SITE_PACKAGES

PyPI has no CPU build of torch. Its CUDA build runs on a machine without a GPU, but its libraries name 20 others (2.7 GB
of nvidia-* wheels) that the dynamic linker wants to see at import. This writes 0.4 MB of libraries with the same names,
holding every symbol that torch refers to, into nvidia/cu13/lib, where torch looks for the real ones by its RUNPATH.

A stub returns 0, "success", which is what the registration calls of static initialisers want to hear. Those that ask
for a device answer "no device", and so torch.cuda.is_available() is False and nothing else is ever called.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

CUDA_ERROR_NO_DEVICE = 100
ASKS_FOR_DEVICE = {
    "cudaDriverGetVersion",
    "cudaGetDevice",
    "cudaGetDeviceCount",
    "cudaRuntimeGetVersion",
    "cudaSetDevice",
}
# Libraries of the system: present, never stubbed.
SYSTEM = re.compile(r"^(lib(c|dl|gcc_s|gomp|m|numa|pthread|rt|stdc\+\+|util)[.-]|ld-linux|libpython)")
TORCH = ("torch/lib/*.so*", "torch/_C*.so", "torchvision/*.so")
CUDA_NAME = re.compile(r"^(cu|CUDA|nccl|nv)")


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def missing_symbols(site: pathlib.Path) -> dict[str, dict[str, set[str]]]:
    """What the installed torch refers to and nobody defines: library -> symbol version ("" for none) -> symbols."""
    torch = [path for pattern in TORCH for path in sorted(site.glob(pattern))]
    bundled = {path.name for folder in ("torch/lib", "torchvision.libs") for path in (site / folder).glob("*")}
    missing: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    unversioned: set[str] = set()
    defined: set[str] = set()

    for path in torch:
        for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-dW", str(path))):
            if needed not in bundled and not SYSTEM.match(needed):
                missing[needed]  # named, perhaps without a single symbol used
        library_of_version = {}
        library = None
        for line in output_of("readelf", "-VW", str(path)).splitlines():
            if found := re.search(r"File: (\S+)", line):
                library = found[1]
            elif library and (found := re.search(r"Name: (\S+)\s+Flags", line)):
                library_of_version[found[1]] = library
        for line in output_of("nm", "-D", str(path)).splitlines():
            match line.split():
                case ["U", symbol]:
                    name, _, version = symbol.partition("@")
                    version = version.lstrip("@")
                    if not version:
                        unversioned.add(name)
                    elif (library := library_of_version.get(version)) in missing:
                        missing[library][version].add(name)
                case [_, _, symbol]:
                    defined.add(symbol.partition("@")[0])

    # Which library an unversioned symbol belongs to is not recorded, and does not matter: the linker looks in all.
    runtime = next(name for name in missing if name.startswith("libcudart.so"))
    missing[runtime][""] |= {name for name in unversioned - defined if CUDA_NAME.match(name)}
    return missing


def write_stub(path: pathlib.Path, versions: dict[str, set[str]]) -> None:
    symbols = sorted(set().union(*versions.values()))
    answers = {name: CUDA_ERROR_NO_DEVICE if name in ASKS_FOR_DEVICE else 0 for name in symbols}
    source = "".join(f"long {name}(void) {{ return {answer}; }}\n" for name, answer in answers.items())
    script = "".join(
        f"{version} {{ global: {'; '.join(sorted(names))}; }};\n" for version, names in versions.items() if version
    )
    with tempfile.TemporaryDirectory() as folder:
        c_file, map_file = pathlib.Path(folder, "stub.c"), pathlib.Path(folder, "stub.map")
        c_file.write_text(source or "typedef int empty;\n")
        map_file.write_text(script)
        options = ["-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{path.name}"]
        if script:
            options.append(f"-Wl,--version-script={map_file}")
        subprocess.run(["cc", *options, "-o", path, c_file], check=True)


def main() -> None:
    site = pathlib.Path(sys.argv[1])
    if any((site / "nvidia").glob("*/include")):
        sys.exit(f"{site}/nvidia holds the real libraries: not replacing them")
    folder = site / "nvidia/cu13/lib"
    folder.mkdir(parents=True, exist_ok=True)
    for name, versions in sorted(missing_symbols(site).items()):
        write_stub(folder / name, versions)
        print(f"{name}: {sum(map(len, versions.values()))} symbols")


if __name__ == "__main__":
    main()
