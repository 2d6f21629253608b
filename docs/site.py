"""The documentation as a site: `make docs` builds site/index.html, which needs no network.

The pages link to each other as files of the repository, so all of them are first copied, in their folders, into one
tree; then MkDocs turns that tree into HTML. A link that leads nowhere fails the build.
"""

import json
import logging
import pathlib
import re
import shutil
import sys
import tempfile

from docs import site_pages

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
# MkDocs's theme switches two style sheets of a highlighter that this site doesn't load.
MAIN = """{% extends "base.html" %}
{% block styles %}{{ super() }}<style id="hljs-light"></style><style id="hljs-dark"></style>{% endblock %}
{% block libs %}{{ super() }}<script>
// Bootstrap looks the anchors of its contents up as selectors, in which an id can't begin with a digit.
const lookUp = Element.prototype.querySelector;
Element.prototype.querySelector = function (text) {
  return lookUp.call(this, /^#\\d/.test(text) ? "#" + CSS.escape(text.slice(1)) : text);
};
</script>{% endblock %}
{% block site_nav %}<a class="skip" href="#main">Skip to the text</a>{{ super() }}{% endblock %}
{% block content %}<div id="main" tabindex="-1"></div>{{ super() }}{% endblock %}
"""
LINK = re.compile(r"\]\(([^)#:]+)[)#]")


def main() -> int:
    """Build the site; exit code 1 for a dead link or anchor."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "pages"
        pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
        for path in {*pages, *(linked for page in pages for linked in linked_files(page))}:
            target = tree / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                site_pages.write_page(path, target)
            else:
                shutil.copyfile(path, target)
        shutil.copyfile(ROOT / "docs" / "site.css", tree / "site.css")
        code = build(tree.parent)
    print(f"{SITE}/index.html" if code == 0 else "the site was not built", file=sys.stderr)
    return code


def build(folder: pathlib.Path) -> int:
    """Let MkDocs build `folder`, and put a search in place that works without a server; returns its exit code."""
    theme = folder / "theme"
    theme.mkdir()
    (theme / "main.html").write_text(MAIN)
    (folder / "mkdocs.yml").write_text(json.dumps(settings()))  # JSON is YAML
    # Imported here: `make docs` alone installs MkDocs.
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    logging.getLogger("mkdocs").addHandler(counter := Counter())
    try:
        config = load_config(str(folder / "mkdocs.yml"))
        config.mdx_configs.setdefault("toc", {})["slugify"] = site_pages.github_slug  # JSON names no function
        build_site(config)
    except Abort as failure:
        print(failure, file=sys.stderr)
        return 1
    index = (SITE / "search" / "search_index.json").read_text()
    (SITE / "search" / "index.js").write_text(f"const SITE_INDEX = {index};\n")
    shutil.copyfile(ROOT / "docs" / "site_search.js", SITE / "search" / "main.js")
    return int(counter.count > 0)


class Counter(logging.Handler):
    """Print MkDocs's warnings, of dead links and anchors for example, and count them."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record of the log."""
        if record.levelno >= logging.WARNING:
            self.count += 1
            print(record.getMessage(), file=sys.stderr)


def linked_files(page: pathlib.Path) -> list[pathlib.Path]:
    """Files of the repository that a page links to or shows."""
    targets = [(page.parent / link).resolve() for link in LINK.findall(page.read_text())]
    return [path for path in targets if path.is_file() and path.is_relative_to(ROOT)]


def settings() -> dict:
    """MkDocs's settings: its own theme, whose styles and fonts lie in the site; no script of another host."""
    first = [{name.rpartition("/")[2]: f"{name}.md"} for name in ORDER]
    theme = {"name": "mkdocs", "highlightjs": False, "color_mode": "auto", "nav_style": "light", "custom_dir": "theme"}
    return {
        "site_name": "scalelab", "docs_dir": "pages", "site_dir": str(SITE), "theme": theme, "nav": first,
        "use_directory_urls": False, "plugins": ["search"], "markdown_extensions": ["tables", "fenced_code"],
        "extra_css": ["site.css"],
        "validation": {"nav": {"omitted_files": "ignore"},
                       "links": {"unrecognized_links": "ignore", "anchors": "warn"}},
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
