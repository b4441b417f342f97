"""What setup.cfg cannot say: the pages stand beside the package, and are installed within it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["attention_np*"]), "attention_np.derivations"],
    package_dir={"attention_np.derivations": "derivations"},
)
