"""The web page at `/`: one HTML file that loads nothing. What it shows comes from `overview` and the other routes.

Its content security policy names the hashes of its own script and style, so nothing else could run in it even if a
text got past the script, which writes text nodes only. The page itself holds no data; so it needs no token.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response


def make_router() -> APIRouter:
    """Make the route."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def page() -> Response:
        """Return the page."""
        html, policy = read_page()
        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }
        return HTMLResponse(html, headers=headers)

    return router


@cache
def read_page() -> tuple[str, str]:
    """Return the page, and its content security policy."""
    folder = files("ale_rock.admin") / "web"
    html, style, script = (
        folder.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script), policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
