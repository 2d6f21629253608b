"""The documentation as a site: `make docs` builds site/index.html, which needs no network.

The pages link to each other as files of the repository, so all of them are first copied, in their folders, into one
tree; then MkDocs turns that tree into HTML. A link that leads nowhere fails the build.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SITE = ROOT / "site"
PAGES = (
    "*.md",
    "docs/*.md",
    "docs/reference/*.md",
    "docs/course/*.md",
    "scalelab/laws/*.md",
    "experiments/results/*.md",
    "checks/results/*.md",
)
ORDER = ("README", "docs/tutorial", "docs/howto", "docs/faq", "docs/glossary", "docs/python", "docs/index")
LINK = re.compile(r"\]\(([^)#:]+)[)#]")


def main() -> int:
    """Build the site; the exit code is MkDocs's."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "pages"
        pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
        for path in {*pages, *(linked for page in pages for linked in linked_files(page))}:
            target = tree / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        (tree.parent / "mkdocs.yml").write_text(json.dumps(settings()))  # JSON is YAML
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(tree.parent / "mkdocs.yml")]
        code = subprocess.run(command).returncode
    print(f"{SITE}/index.html" if code == 0 else "the site was not built", file=sys.stderr)
    return code


def linked_files(page: pathlib.Path) -> list[pathlib.Path]:
    """Files of the repository that a page links to or shows."""
    targets = [(page.parent / link).resolve() for link in LINK.findall(page.read_text())]
    return [path for path in targets if path.is_file() and path.is_relative_to(ROOT)]


def settings() -> dict:
    """MkDocs's settings: its own theme, whose styles and fonts lie in the site; no script of another host."""
    first = [{name.rpartition("/")[2]: f"{name}.md"} for name in ORDER]
    theme = {"name": "mkdocs", "highlightjs": False, "color_mode": "auto", "nav_style": "light"}
    return {
        "site_name": "scalelab", "docs_dir": "pages", "site_dir": str(SITE), "theme": theme, "nav": first,
        "use_directory_urls": False, "plugins": ["search"], "markdown_extensions": ["tables", "fenced_code"],
        "validation": {"nav": {"omitted_files": "ignore"}, "links": {"unrecognized_links": "ignore"}},
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
