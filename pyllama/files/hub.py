"""Models from the Hugging Face hub, by the name of a repository.

    path = hub_model("bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M")

Files lie in the cache that all of Hugging Face's tools share (``HF_HOME``). Where a connection
breaks, the download goes on at that byte; whether one that the user stopped does is for
huggingface_hub to say (its version 2 begins again). Without a network what is cached is used. Needs
that package (the extra ``hf``).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pyggml import env

from ..errors import HubError

_PREFERRED = ("Q4_K_M", "Q8_0")
_NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_MOST_SHOWN = 12
_TIMEOUT_S = 10.0
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)


@dataclass(frozen=True)
class Hub:
    """Where models come from, and who asks.

    Args:
        token: for private and gated repositories; None for ``HF_TOKEN``, or the one that
            ``hf auth login`` saved.
        offline: use what is cached and no network.
        cache_dir: another cache.
        progress: told the fraction of a file that is there, and its name.
    """

    token: str | None = None
    offline: bool = False
    cache_dir: Path | None = None
    progress: Callable[[str, float], None] | None = None

    def download(self, repo: str, file: str) -> Path:
        """One file of a repository, from the cache where that has its newest version."""
        hf = _huggingface_hub()
        with _errors(repo, file):
            return Path(
                hf.hf_hub_download(
                    repo,
                    file,
                    token=self._token(),
                    endpoint=env.HF_ENDPOINT.get(),
                    cache_dir=self.cache_dir,
                    local_files_only=self.offline,
                    tqdm_class=_bar(file, self.progress),
                )
            )

    def files(self, repo: str) -> list[str]:
        """Names of a repository's files; offline, of those that are cached."""
        hf = _huggingface_hub()
        if self.offline:
            return self._cached(repo)
        api = hf.HfApi(endpoint=env.HF_ENDPOINT.get(), token=self._token())
        with _errors(repo):
            info = api.model_info(repo, timeout=_TIMEOUT_S)
            return sorted(file.rfilename for file in info.siblings or ())

    def _token(self) -> str | None:
        return self.token or env.HF_TOKEN.get()

    def _cached(self, repo: str) -> list[str]:
        from huggingface_hub.constants import HF_HUB_CACHE

        root = Path(self.cache_dir or HF_HUB_CACHE)
        snapshots = root / f"models--{repo.replace('/', '--')}" / "snapshots"
        found = (p for p in snapshots.glob("*/**/*.gguf") if p.is_file())
        return sorted({Path(*p.relative_to(snapshots).parts[1:]).as_posix() for p in found})


def hub_model(name: str, file: str | None = None, hub: Hub | None = None) -> Path:
    """The GGUF file of a model, downloaded if need be.

    Args:
        name: ``user/model`` or ``user/model:QUANT``; without a quantization Q4_K_M, else Q8_0,
            else the first.
        file: name of the file instead, or a pattern that one file has, such as ``*Q4_K_M.gguf``.

    Returns:
        Its path in the cache; the first of several parts, all of which are there.

    Raises:
        HubError: no such repository, file or quantization; no access; no network; a full disk; or
            huggingface_hub is not installed.

    Source: llama.cpp, ``common_download_get_hf_plan``.
    """
    hub = hub or Hub()
    repo, _, quant = name.partition(":")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise HubError(f"{name!r} is not a repository: write user/model, or user/model:QUANT")
    _huggingface_hub()
    hub, files = _reach(hub, repo)
    chosen = _named(repo, files, file) if file else choose(repo, files, quant)
    paths = [hub.download(repo, part) for part in _parts(chosen, files)]
    return paths[0]


def _reach(hub: Hub, repo: str) -> tuple[Hub, list[str]]:
    """The hub with a repository's files, or the cache where it cannot be reached."""
    try:
        files = hub.files(repo)
    except _Unreachable as error:
        hub = replace(hub, offline=True)
        if not (files := hub.files(repo)):
            raise HubError(str(error)) from None
    if hub.offline and not files:
        raise HubError(f"{repo} is not in the cache, and this is offline; leave out `offline=True`")
    return hub, files


def choose(repo: str, files: Iterable[str], quant: str = "") -> str:
    """The model among the files of a repository.

    Raises:
        HubError: there is none of this quantization.

    Source: llama.cpp, ``find_best_model``.
    """
    models = [f for f in files if f.lower().endswith(".gguf") and _is_model(f)]
    for wanted in [quant] if quant and quant != "latest" else _PREFERRED:
        for name in models:
            if re.search(re.escape(wanted) + "[.-]", name, re.IGNORECASE):
                return name
    if models and (not quant or quant == "latest"):
        return models[0]
    what = f"no {quant} among its" if models else "no"
    raise HubError(f"{repo} has {what} GGUF files{_shown(models)}")


def _is_model(name: str) -> bool:
    """Not a part after the first, nor a file that only goes with a model."""
    split = _SPLIT.fullmatch(name)
    base = name.rpartition("/")[2]
    return not (split and int(split[2]) != 1) and not any(word in base for word in _NO_MODEL)


def _named(repo: str, files: list[str], wanted: str) -> str:
    for name in files:
        if name.lower() == wanted.lower():
            return name
    models = [f for f in files if f.lower().endswith(".gguf")]
    found = [f for f in models if fnmatchcase(f.lower(), wanted.lower()) and _is_model(f)]
    if len(found) == 1:
        return found[0]
    if found:
        raise HubError(f"{repo} has several files {wanted}: {', '.join(found)}; want one")
    raise HubError(f"{repo} has no file {wanted}{_shown(models)}")


def _shown(names: list[str]) -> str:
    if not names:
        return ""
    more = ", ..." if len(names) > _MOST_SHOWN else ""
    return f"; it has {', '.join(names[:_MOST_SHOWN])}{more}"


def _parts(name: str, files: list[str]) -> list[str]:
    split = _SPLIT.fullmatch(name)
    if split is None:
        return [name]
    return [f"{split[1]}-{i:05d}-of-{split[3]}.gguf" for i in range(1, int(split[3]) + 1)]


class _Unreachable(HubError):
    """The hub cannot be reached."""


def _huggingface_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise HubError(
            "models from the hub need huggingface_hub: pip install 'pyggml[hf]', "
            "or pip install huggingface_hub"
        ) from None
    return huggingface_hub


class _errors:
    """Turns what huggingface_hub raises into one line."""

    def __init__(self, repo: str, file: str = "") -> None:
        self._repo, self._what = repo, f"{repo}/{file}" if file else repo

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, HubError):
            return
        from huggingface_hub import errors

        text = " ".join(str(error).split())[:300]
        if isinstance(error, errors.GatedRepoError):
            hint = "accept its terms on the web, and give a token (`token` or HF_TOKEN)"
            raise HubError(f"{self._repo} is gated: {hint}") from None
        if isinstance(error, errors.RepositoryNotFoundError):
            hint = "check the name; a private one needs a token (`token` or HF_TOKEN)"
            raise HubError(f"there is no repository {self._repo} on the hub: {hint}") from None
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _Unreachable(f"{self._what} is not in the cache, and the hub: {text}") from None
        if isinstance(error, errors.EntryNotFoundError):
            raise HubError(f"{self._what} does not exist") from None
        if isinstance(error, errors.HfHubHTTPError) and error.response.status_code < 500:
            raise HubError(f"{self._what}: {text}") from None
        if isinstance(error, errors.HFValidationError):
            raise HubError(f"{self._repo!r} is not a repository: {text}") from None
        if isinstance(error, OSError) and error.errno in _DISK:
            raise HubError(
                f"{self._what} cannot be kept: {text}; HF_HOME names another place for the cache"
            ) from None
        raise _Unreachable(f"{self._what} cannot be fetched: {text}; is there a network?") from None


def _bar(file: str, progress: Callable[[str, float], None] | None) -> Any:
    """What huggingface_hub takes for a progress bar."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined,unused-ignore]

    class Bar(tqdm):  # type: ignore[misc,type-arg,unused-ignore]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call,unused-ignore]
            self._done, self._all = options.get("initial") or 0, options.get("total") or 0

        def update(self, n: float | None = 1) -> bool | None:
            self._done += n or 0
            if progress is not None and self._all:
                progress(file, min(self._done / self._all, 1.0))
            return None

    return Bar
