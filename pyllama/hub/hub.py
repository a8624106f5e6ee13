"""Downloads models from the Hugging Face hub by repository name.

    path = hub_model("bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M")

Files are stored in Hugging Face's shared cache (``HF_HOME``). A download resumes after a connection
error; after an interrupt that depends on the version of huggingface_hub (version 2 restarts).
Without a network, cached files are used. Needs the package huggingface_hub (the extra ``hf``).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pyggml import env

from ..errors import HubError

_PREFERRED = ("Q4_K_M", "Q8_0")
_NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_MAX_SHOWN = 12
_TIMEOUT_S = 10.0
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)


@dataclass(frozen=True)
class Hub:
    """Access to the hub.

    Args:
        token: for private and gated repositories; None: ``HF_TOKEN``, or the token saved by
            ``hf auth login``.
        offline: use only cached files, no network.
        cache_dir: replaces the default cache.
        local_dir: a folder for the files, in place of the cache.
        progress: called with the file's name and the completed fraction.
    """

    token: str | None = None
    offline: bool = False
    cache_dir: Path | None = None
    local_dir: Path | None = None
    progress: Callable[[str, float], None] | None = None

    def download(self, repo: str, file: str) -> Path:
        """Return the path of a file of a repository, downloaded unless the cache is up to date.

        Raises:
            HubError: the file cannot be downloaded.
        """
        hf = _huggingface_hub()
        with _errors(repo, file):
            return Path(
                hf.hf_hub_download(
                    repo,
                    file,
                    token=self._token(),
                    endpoint=env.HF_ENDPOINT.get(),
                    cache_dir=self.cache_dir,
                    local_dir=self.local_dir,
                    local_files_only=self.offline,
                    tqdm_class=_bar(file, self.progress),
                )
            )

    def files(self, repo: str) -> list[str]:
        """Return the names of a repository's files; offline, of the cached files.

        Raises:
            HubError: the repository does not exist or cannot be reached.
        """
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
        if self.local_dir is not None:
            here = (p.relative_to(self.local_dir) for p in self.local_dir.rglob("*.gguf"))
            return sorted(p.as_posix() for p in here)
        from huggingface_hub.constants import HF_HUB_CACHE

        root = Path(self.cache_dir or HF_HUB_CACHE)
        snapshots = root / f"models--{repo.replace('/', '--')}" / "snapshots"
        found = (p for p in snapshots.glob("*/**/*.gguf") if p.is_file())
        return sorted({Path(*p.relative_to(snapshots).parts[1:]).as_posix() for p in found})


def hub_model(name: str, file: str | None = None, hub: Hub | None = None) -> Path:
    """Return the GGUF file of a model, downloading it if necessary.

    Args:
        name: ``user/model`` or ``user/model:QUANT``; the default QUANT is Q4_K_M, else Q8_0, else
            the first file.
        file: a file name, or a pattern that matches one file, such as ``*Q4_K_M.gguf``; replaces
            QUANT.

    Returns:
        Its path in the cache. For a split model all parts are downloaded; the path is the first's.

    Raises:
        HubError: no such repository, file or quantization; no access; no network; a full disk; or
            huggingface_hub is not installed.

    Source: llama.cpp, ``common_download_get_hf_plan``.
    """
    hub = hub or Hub()
    repo, _, quant = name.partition(":")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise HubError(f"{name!r} is not a repository: use user/model or user/model:QUANT")
    _huggingface_hub()
    hub, files = _reach(hub, repo)
    models = [*filter(_is_model, files)]
    chosen = _one(repo, files, file, models) if file else choose(repo, files, quant)
    paths = [hub.download(repo, part) for part in _parts(chosen, files)]
    return paths[0]


def hub_files(repo: str, patterns: Iterable[str], hub: Hub) -> list[Path]:
    """Return further files of a model's repository, downloading them if necessary.

    Args:
        repo: ``user/model``; a QUANT is ignored.
        patterns: names, or patterns that match one file each, such as ``*mmproj*``.

    Raises:
        HubError: as `hub_model`; a pattern matches no file, or several.
    """
    repo, patterns = repo.partition(":")[0], list(patterns)
    if not patterns:
        return []
    hub, files = _reach(hub, repo)
    return [hub.download(repo, _one(repo, files, pattern, files)) for pattern in patterns]


def _reach(hub: Hub, repo: str) -> tuple[Hub, list[str]]:
    """Return the hub and a repository's files; falls back to the cache if it is unreachable."""
    try:
        files = hub.files(repo)
    except _Unreachable as error:
        hub = replace(hub, offline=True)
        if not (files := hub.files(repo)):
            raise HubError(str(error)) from None
    if hub.offline and not files:
        raise HubError(f"{repo} is not in the cache; download it without `offline=True`")
    return hub, files


def choose(repo: str, files: Iterable[str], quant: str = "") -> str:
    """Return the model's file among the files of a repository.

    Raises:
        HubError: there is no file of this quantization.

    Source: llama.cpp, ``find_best_model``.
    """
    models = [*filter(_is_model, files)]
    for tag in [quant] if quant and quant != "latest" else _PREFERRED:
        for name in models:
            if re.search(re.escape(tag) + "[.-]", name, re.IGNORECASE):
                return name
    if models and (not quant or quant == "latest"):
        return models[0]
    which = f"no {quant} among its" if models else "no"
    raise HubError(f"{repo} has {which} GGUF files{_shown(models)}")


def _is_model(name: str) -> bool:
    """Return whether a file is a model: not a further part, and not an auxiliary file."""
    split = _SPLIT.fullmatch(name)
    base = name.rpartition("/")[2]
    is_part = split is not None and int(split[2]) != 1
    is_other = is_part or any(word in base for word in _NO_MODEL)
    return name.lower().endswith(".gguf") and not is_other


def _one(repo: str, files: Iterable[str], pattern: str, of: list[str]) -> str:
    """The file with this name, or the one file of some that matches a pattern."""
    low = pattern.lower()
    found = [f for f in files if f.lower() == low][:1]
    found = found or [f for f in of if fnmatchcase(f.lower(), low)]
    if len(found) == 1:
        return found[0]
    if found:
        raise HubError(f"{repo} has several files {pattern}: {', '.join(found)}; name one")
    raise HubError(f"{repo} has no file {pattern}{_shown(of)}")


def _shown(names: list[str]) -> str:
    if not names:
        return ""
    more = ", ..." if len(names) > _MAX_SHOWN else ""
    return f"; it has {', '.join(names[:_MAX_SHOWN])}{more}"


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


@contextmanager
def _errors(repo: str, file: str = "") -> Iterator[None]:
    """Converts exceptions of huggingface_hub to one-line HubErrors."""
    what = f"{repo}/{file}" if file else repo
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        from huggingface_hub import errors

        text = " ".join(str(error).split())[:300]
        if isinstance(error, errors.GatedRepoError):
            hint = "accept its terms on the web site, and set a token (`token` or HF_TOKEN)"
            raise HubError(f"{repo} is gated: {hint}") from None
        if isinstance(error, errors.RepositoryNotFoundError):
            hint = "check the name; a private one needs a token (`token` or HF_TOKEN)"
            raise HubError(f"there is no repository {repo} on the hub: {hint}") from None
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _Unreachable(f"{what} is not in the cache; hub error: {text}") from None
        if isinstance(error, errors.EntryNotFoundError):
            raise HubError(f"{what} does not exist") from None
        if isinstance(error, errors.HfHubHTTPError) and error.response.status_code < 500:
            raise HubError(f"{what}: {text}") from None
        if isinstance(error, errors.HFValidationError):
            raise HubError(f"{repo!r} is not a repository: {text}") from None
        if isinstance(error, OSError) and error.errno in _DISK:
            raise HubError(
                f"{what} cannot be saved: {text}; set HF_HOME to another folder"
            ) from None
        raise _Unreachable(f"{what} cannot be downloaded: {text}; is there a network?") from None


def _bar(file: str, progress: Callable[[str, float], None] | None) -> Any:
    """Return a class in place of tqdm that calls ``progress``."""
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
