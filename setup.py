"""What setup.cfg cannot say: pages are installed within the package, links have targets, and files equal bytes."""

import os
import re
import tarfile
from gzip import GzipFile
from io import BytesIO
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist


class ReproducibleSdist(sdist):
    """An sdist that is the same, byte for byte, whoever builds it and when, if SOURCE_DATE_EPOCH is set."""

    def make_archive(self, base_name, format, *args, **options):  # noqa: A002
        """Make it as always; then give all files in it that date, and no owner."""
        path = super().make_archive(base_name, format, *args, **options)
        if format != "gztar" or "SOURCE_DATE_EPOCH" not in os.environ:
            return path
        date, packed = int(os.environ["SOURCE_DATE_EPOCH"]), BytesIO(Path(path).read_bytes())
        with (
            tarfile.open(fileobj=packed) as old,
            GzipFile("", "wb", fileobj=Path(path).open("wb"), mtime=date) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as new,
        ):
            for entry in sorted(old, key=lambda entry: entry.name):
                content = old.extractfile(entry)
                entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.pax_headers = date, 0, 0, "", "", {}
                entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
                new.addfile(entry, content)
        return path


setup(
    packages=[*find_packages(include=["attention_np*"]), "attention_np.derivations", "attention_np.measured"],
    package_dir={"attention_np.derivations": "derivations", "attention_np.measured": "docs/measured"},
    # Where it is shown, the files that the README links to are not beside it.
    long_description=re.sub(
        r"!?\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    ),
    cmdclass={"sdist": ReproducibleSdist},
)
