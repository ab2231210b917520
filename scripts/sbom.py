"""Writes docs/sbom.cdx.json: what the wheel depends on, in the versions and with the hashes of uv.lock.

CycloneDX 1.6. The same lock file gives the same bytes: no time, no machine, nothing is looked up. Only the
standard library is used. What is not here: the development group, which is in no wheel; licences, which the
lock file does not know.

Source: https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "sbom.cdx.json"
NAME = "airflow-provider-pgoutput"
#: Extras of the wheel; what only they bring is optional.
EXTRAS = ("spark",)

_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)

Package = dict[str, Any]


class Lock:
    """The packages of a lock file."""

    def __init__(self, text: str) -> None:
        self._packages: dict[str, list[Package]] = {}
        for package in tomllib.loads(text)["package"]:
            self._packages.setdefault(package["name"], []).append(package)

    @property
    def wheel(self) -> Package:
        """This project itself."""
        (found,) = self._packages[NAME]
        return found

    def closure(self, wanted: list[Package]) -> dict[str, Package]:
        """All packages that some dependencies of ``wheel`` lead to, by reference."""
        found: dict[str, Package] = {}
        waiting = [(each, extra) for each in wanted for extra in self._extras(each)]
        seen: set[tuple[str, str]] = set()
        while waiting:
            dependency, extra = waiting.pop()
            for package in self._named(dependency):
                if package["name"] == NAME or (reference(package), extra) in seen:
                    continue
                seen.add((reference(package), extra))
                found[reference(package)] = package
                inner = (
                    package.get("optional-dependencies", {}).get(extra, [])
                    if extra
                    else package.get("dependencies", [])
                )
                waiting += [(each, wish) for each in inner for wish in self._extras(each)]
        return found

    def references(self, dependencies: list[Package]) -> list[str]:
        """References of the packages that dependencies name, sorted, this project left out."""
        named = [package for each in dependencies for package in self._named(each)]
        return sorted({reference(each) for each in named if each["name"] != NAME})

    def _named(self, dependency: Package) -> list[Package]:
        """A dependency names a version only where the lock file has several."""
        version = dependency.get("version")
        return [
            each
            for each in self._packages[dependency["name"]]
            if version is None or each["version"] == version
        ]

    @staticmethod
    def _extras(dependency: Package) -> list[str]:
        return ["", *dependency.get("extra", [])]


def reference(package: Package) -> str:
    """The package's URL, which is its name in the bill: https://github.com/package-url/purl-spec ."""
    return f"pkg:pypi/{package['name']}@{package['version']}"


def bill(lock_text: str, version: str) -> dict[str, Any]:
    """The bill of materials.

    :param lock_text: the content of ``uv.lock``.
    :param version: of the wheel.
    """
    lock = Lock(lock_text)
    wheel = lock.wheel
    optional = [each for extra in EXTRAS for each in wheel["optional-dependencies"][extra]]
    required = lock.closure(wheel["dependencies"])
    every = required | lock.closure(optional)
    top = f"pkg:pypi/{NAME}@{version}"
    components = [
        _component(every[name], "required" if name in required else "optional")
        for name in sorted(every)
    ]
    dependencies = [
        {"ref": top, "dependsOn": lock.references([*wheel["dependencies"], *optional])}
    ] + [
        {"ref": name, "dependsOn": lock.references(_all_dependencies(every[name], every, lock))}
        for name in sorted(every)
    ]
    content = {"components": components, "dependencies": dependencies}
    identity = uuid.uuid5(uuid.NAMESPACE_URL, top + json.dumps(content))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{identity}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": top,
                "name": NAME,
                "version": version,
                "purl": top,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        **content,
    }


def _all_dependencies(package: Package, every: dict[str, Package], lock: Lock) -> list[Package]:
    """What a package needs by itself, and of its extras what is in the bill anyway."""
    extras = [each for found in package.get("optional-dependencies", {}).values() for each in found]
    present = [each for each in extras if set(lock.references([each])) <= every.keys()]
    return [*package.get("dependencies", []), *present]


def _component(package: Package, scope: str) -> dict[str, Any]:
    files = [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
    sums = sorted({each["hash"].removeprefix("sha256:") for each in files if "hash" in each})
    return {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "scope": scope,
        "purl": reference(package),
        # Of each of its files in the index; which one is installed depends on the machine.
        "hashes": [{"alg": "SHA-256", "content": each} for each in sums],
    }


def text() -> str:
    """The bill for this checkout, as the text of its file."""
    found = _VERSION.search((ROOT / "airflow_provider_pgoutput" / "__init__.py").read_text())
    assert found, "the package has a version"
    return json.dumps(bill((ROOT / "uv.lock").read_text(), found[1]), indent=1) + "\n"


def main() -> int:
    """Write the file; return the exit status."""
    TARGET.write_text(text())
    print(f"sbom: wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
