"""Whether torch reads what ``write_torch`` writes; run where torch is installed, in a folder with
files of ``tests/pyllama/convert/test_torch_writer.py`` (``pytest --basetemp`` keeps them).

Seen with torch 2.13: both are read with ``weights_only=True``, mapped or not, with the values that
the test names; the digests of the files are in the test. ``activation_0.pt`` is from this script.
"""

import hashlib
import pathlib

import torch

for path in sorted(pathlib.Path().rglob("*.pt")):
    read = torch.load(path, weights_only=True)
    mapped = torch.load(path, weights_only=True, mmap=True)
    print(path, hashlib.sha256(path.read_bytes()).hexdigest(), read, mapped, sep="\n")
torch.save(torch.arange(8) * 3, "activation_0.pt")
