"""A hook of the docs site: links that work on a checkout, and on GitHub, work on the site.

A link to a file outside of docs/ is a relative path. The site has no such file, so it becomes a link below
`repo_url` where mkdocs.yml has one, and else plain text with the path. A link to a file that does not exist
ends the build. Anchors of headings are named as on GitHub.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

_OUTSIDE = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)#\s]*)(#[^)]*)?\)")
_NO_ANCHOR = re.compile(r"[^\w\- ]")


class BrokenLink(ValueError):
    """A page links to a file that does not exist."""


def on_config(config: Any) -> Any:
    """What MkDocs calls once, before it reads the pages."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def anchor(heading: str, separator: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return _NO_ANCHOR.sub("", heading.lower()).replace(" ", separator)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """What MkDocs calls for every page, before it reads the page's links."""
    root = Path(config.config_file_path).parent
    return rewritten(markdown, page.file.src_uri, root, config.docs_dir, config.repo_url or "")


def rewritten(markdown: str, page: str, root: Path, docs_dir: str, repository: str) -> str:
    """The text of `page`, a path below `docs_dir`, with its links out of `docs_dir` rewritten.

    Raises:
        BrokenLink: such a link leads to nothing.
    """
    folder = posixpath.join(Path(docs_dir).relative_to(root).as_posix(), posixpath.dirname(page))

    def replace(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[2]))
        if not (root / path).exists():
            raise BrokenLink(f"{page}: the link to {found[2]} leads to no file")
        if repository:
            return f"[{found[1]}]({repository.rstrip('/')}/blob/main/{path}{found[3] or ''})"
        return found[1] if found[1].strip("`") == path else f"{found[1]} (`{path}`)"

    return _OUTSIDE.sub(replace, markdown)
