"""XXH64 against hashes of the reference implementation (the package xxhash 3)."""

from __future__ import annotations

from pyllama.gguf_tools.xxh64 import XXH64


def test_known_hashes_for_any_chunk_size() -> None:
    known = {  # of the reference implementation
        b"": "ef46db3751d8e999",
        b"a": "d24ec4f1a98c6e5b",
        b"abc": "44bc2cf5ad770999",
        b"xxhash": "32dd38952c4bc720",
        bytes(range(101)): "e99038495f85381e",
    }
    for data, digest in known.items():
        for step in (1, 7, 64, 200):
            state = XXH64()
            for i in range(0, len(data), step):
                state.update(data[i : i + step])
            assert state.hexdigest() == digest
