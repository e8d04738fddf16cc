"""What trainings of `resumed_training` left, compared."""

import torch


def same(found, wanted):
    """Whether two nests of dicts, lists, tensors and numbers agree bit for bit."""
    if isinstance(wanted, torch.Tensor):
        return torch.equal(found, wanted)
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return found == wanted


def final(folder, rank=0):
    return torch.load(folder / f"final_{rank}.pt", weights_only=True)


def logged(folder):
    path = folder / "logged"
    return path.read_text().splitlines() if path.exists() else []


def assert_rest(folder, whole):
    """A resumed training ended as the whole one did, and logged the last part of its lines."""
    assert same(final(folder), final(whole))
    lines = logged(folder)
    assert lines == logged(whole)[len(logged(whole)) - len(lines) :]


def newest(folder):
    """The newest checkpoint that can be read: the file system of TMPDIR decides whether a kill can
    leave half a file."""
    paths = sorted(folder.glob("checkpoints/*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    for path in reversed(paths):
        try:
            torch.load(path, weights_only=True)
        except (EOFError, OSError, RuntimeError):
            continue
        return path
    return None


def step_of(checkpoint):
    return torch.load(checkpoint, weights_only=True)["global_step"]
