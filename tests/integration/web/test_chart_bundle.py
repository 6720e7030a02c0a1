"""The script that draws charts: built from pinned packages, with their licences."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from tests.servers.process import need
from tests.support.fetched import fetched, run

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "deploy" / "charts"
BUNDLE = ROOT / "monitor" / "web" / "static" / "charts.js"


def _built_bundle() -> bytes:
    """Return the bundle that the sources give, with the packages of the lock file from npm."""
    files = sorted(path for path in SOURCES.iterdir() if path.is_file())
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]
    npm = need("npm", "npm")

    def build(folder: Path) -> None:
        for path in files:
            shutil.copy(path, folder)
        run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", within=folder)
        (folder / "out").mkdir()
        run(npm, "run", "build", "--", "out", within=folder)

    return (fetched(f"charts-{digest}", build) / "out" / "charts.js").read_bytes()


class TestBundle:
    """monitor/web/static/charts.js."""

    def test_the_file_equals_the_build_of_its_sources(self) -> None:
        """After a change in deploy/charts: `npm ci --ignore-scripts && npm run build -- ../../monitor/web/static`."""
        assert hashlib.sha256(BUNDLE.read_bytes()).hexdigest() == hashlib.sha256(_built_bundle()).hexdigest()

    def test_the_file_has_the_licences_of_its_packages(self) -> None:
        """BSD and ISC licences ask for the copyright notices in every copy."""
        licenses = BUNDLE.read_text(encoding="utf-8").rpartition("/*\n")[2]
        for words in ("vega 6.", "vega-lite 6.", "d3-array", "University of Washington", "Redistribution and use"):
            assert words in licenses

    def test_the_file_can_be_inside_of_an_html_file(self) -> None:
        """No text of the script ends the element, or begins a comment in which the end would not count."""
        text = BUNDLE.read_text(encoding="utf-8").lower()
        assert "</script" not in text
        assert "<!--" not in text

    def test_the_wheel_has_the_static_files_and_templates(self, tmp_path: Path) -> None:
        """The image installs the wheel, so a page in the image has charts."""
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
        # Without its variable, the build compiles nothing.
        environment = {name: text for name, text in os.environ.items() if name != "ABMONITOR_NATIVE"}
        subprocess.run(build, cwd=ROOT, env=environment, check=True, capture_output=True)
        (wheel,) = tmp_path.iterdir()
        names = set(ZipFile(wheel).namelist())
        package = ROOT / "monitor"
        files = [*package.glob("web/static/*"), *package.glob("web/templates/*")]
        assert {str(path.relative_to(ROOT)) for path in files} <= names
        assert "monitor/web/static/charts.js" in names
