"""What pip installs with the wheel: the release of torch that it is built on. Called by scikit-build-core, see pyproject.toml."""

from importlib.metadata import version


def dynamic_metadata(settings, project):
    return {"dependencies": ["torch==" + version("torch").split("+")[0]]}
