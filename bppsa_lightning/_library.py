"""Loads the operator libraries `_C` and `_C_cuda`, once a process, and says what they hold."""

import hashlib
import os
from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import files as _files
from importlib.metadata import version as _version

import torch

_NAMESPACE_MARK = "bppsa::reverse_scan"


def _find(name: str) -> str | None:
    # An editable install keeps the libraries in another folder of the package's __path__.
    import bppsa_lightning

    for folder in bppsa_lightning.__path__:
        path = os.path.join(folder, f"{name}.so")
        if os.path.isfile(path):
            return path
    return None


def _not_found() -> str:
    import bppsa_lightning

    sources, installed = [*bppsa_lightning.__path__], _installed()
    if installed is not None:
        return (
            f"bppsa_lightning: Python found the sources in {sources[0]} before the package that is "
            f"installed in {installed}; start Python in another folder, or install the sources by "
            "`pip install --editable .`"
        )
    return (
        f"bppsa_lightning: the operator library _C was not found in {sources}; build it with `make "
        "build`, or `pip install .` in the project's folder (needs a C++ compiler)"
    )


def _installed() -> str | None:
    """The folder of an installed package that has the library."""
    try:
        paths = _files("bppsa-lightning") or []
    except PackageNotFoundError:
        return None
    found = [path for path in paths if path.name == "_C.so" and path.locate().exists()]  # type: ignore[attr-defined]
    return str(found[0].locate().parent) if found else None  # type: ignore[attr-defined]


def _load() -> bool:
    """Loads what was built; whether the CUDA kernels are there. ImportError if `_C` is not."""
    if not torch._C._dispatch_has_kernel(_NAMESPACE_MARK):
        library = _find("_C")
        if library is None:
            raise ImportError(_not_found())
        _load_library(library)
    if torch._C._dispatch_has_kernel_for_dispatch_key(_NAMESPACE_MARK, "CUDA"):
        return True
    cuda_library = _find("_C_cuda") if torch.version.cuda else None
    if cuda_library is None:
        return False
    _load_library(cuda_library)
    return True


def _load_library(path: str) -> None:
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(
            f"bppsa_lightning: {os.path.basename(path)} does not load with torch "
            f"{torch.__version__} (torch 2.11 or newer is needed): {error.__cause__ or error}"
        ) from error


HAS_CUDA_KERNELS = _load()
NO_CUDA_KERNELS = (
    "bppsa_lightning was built without its CUDA kernels (_C_cuda): build it again, with `make "
    "build` or `pip install .`, where an nvcc is on PATH or CUDACXX names one"
)


def version() -> str:
    """Of this package."""
    return _version("bppsa-lightning")


def cpu_kernels() -> str:
    """The instruction set that the CPU kernels were chosen for."""
    return str(torch.ops.bppsa.cpu_capability())


def missing_jacobian_kernels(device: torch.device) -> str | None:
    """Why the operators on sparse Jacobians cannot run on a device; None if they can."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return "wanted on the CPU or on a CUDA device"
    return None if HAS_CUDA_KERNELS else NO_CUDA_KERNELS


@torch.compiler.assume_constant_result
def missing_recurrent_kernels(device: torch.device) -> str | None:
    """Why the recurrent operators cannot run on a device, for people; None if they can."""
    if device.type in ("cpu", "meta"):
        return None
    if device.type != "cuda":
        return f"on {device} the recurrent operators have no kernel"
    return _missing_recurrent_cuda_kernels(device)


@lru_cache(maxsize=64)
def _missing_recurrent_cuda_kernels(device: torch.device) -> str | None:
    if not HAS_CUDA_KERNELS:
        return NO_CUDA_KERNELS
    built = recurrent_architectures()
    major, minor = torch.cuda.get_device_capability(device)
    own = 10 * major + minor
    if own >= built[0]:  # its own code, or PTX of an older one
        return None
    return (
        f"{device} has compute capability {major}.{minor}, and the recurrent CUDA kernels were "
        f"built for {', '.join(f'{a // 10}.{a % 10}' for a in built)}: build again with "
        f"`pip install . -C cmake.define.BPPSA_CUDA_RECURRENT_ARCHITECTURES={own}`"
    )


def recurrent_architectures() -> list[int]:
    """The compute capabilities that the recurrent CUDA kernels were built for: 75 is 7.5."""
    if not HAS_CUDA_KERNELS:
        return []
    return sorted(map(int, torch.ops.bppsa.recurrent_cuda_architectures().split(",")))


@lru_cache(maxsize=1)
def cuda_build() -> str | None:
    """A digest of the CUDA kernels' library, which every other build changes; None without one."""
    path = _find("_C_cuda")
    if path is None:
        return None
    with open(path, "rb") as library:
        return hashlib.sha256(library.read()).hexdigest()[:16]
