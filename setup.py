"""Names the packages: ``cli/`` is installed as ``pyllama_cli``, all else under its own name.

Everything else is in pyproject.toml, which cannot both find packages and rename one.
"""

from setuptools import find_packages, setup

packages = find_packages(include=["pyggml", "pyggml.*", "pyllama", "pyllama.*"])
packages += ["pyllama_cli", *(f"pyllama_cli.{name}" for name in find_packages("cli"))]
setup(packages=packages, package_dir={"pyllama_cli": "cli"})
