"""Opens Airflow's pages in Chromium and prints as JSON what a person would see. It needs only playwright.

``python look.py BASE_URL CHROMIUM USER PASSWORD FOLDER``; the folder gets screenshots.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

# Without these Chromium asks hosts of its maker for things.
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
FILLED = "main[aria-busy=false]"


def main() -> None:
    """Look at each view."""
    base, chromium, user, password, folder = sys.argv[1:]
    found: dict[str, Any] = {"errors": [], "hosts": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        context = browser.new_context(viewport={"width": 1100, "height": 900})
        page = context.new_page()
        page.on("pageerror", lambda error: found["errors"].append(str(error)))
        page.on("request", lambda request: found["hosts"].append(request.url.split("/")[2]))

        def see(name: str, path: str) -> None:
            started = time.monotonic()
            page.goto(base + path)
            page.wait_for_selector(FILLED)
            page.wait_for_load_state("networkidle")
            found[f"{name}_seconds"] = round(time.monotonic() - started, 2)
            found[name] = page.inner_text("main")
            page.screenshot(path=str(Path(folder) / f"{name}.png"))

        page.on(
            "console",
            lambda message: (
                found["errors"].append(message.text)
                if "Content Security Policy" in message.text
                else None
            ),
        )
        see("anonymous", "/pgoutput/")
        answer = context.request.post(
            f"{base}/auth/token", data={"username": user, "password": password}
        )
        context.add_cookies(
            [{"name": "_token", "value": answer.json()["access_token"], "url": base}]
        )
        see("all", "/pgoutput/")
        page.get_by_role("link", name="db.example.com:5432/app/shop").click()
        page.wait_for_selector("figure")
        see("one", page.url.removeprefix(base))
        found["figures"] = page.locator("figure svg").count()
        found["rows"] = page.locator("tbody").first.locator("tr").count()
        page.get_by_role("button", name="inserts").click()
        found["most_inserts"] = page.locator("tbody tr").first.inner_text()
        page.get_by_role("searchbox").fill("t0777")
        found["searched"] = page.locator("tbody").first.inner_text()
        found["title"] = page.title()
        see("of_dag", "/pgoutput/?dag_id=danger_dag")
        see("copying", "/pgoutput/?dag_id=copy_dag")
        see("of_no_dag", "/pgoutput/?dag_id=nobodys")
        page.set_viewport_size({"width": 360, "height": 700})
        page.emulate_media(color_scheme="dark")
        see("narrow_and_dark", "/pgoutput/?dag_id=shop_dag")
        found["overflow"] = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        found["ground"] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.set_viewport_size({"width": 1100, "height": 900})
        for name, path in (
            ("in_navigation", "/plugin/pgoutput"),
            ("on_dag", "/dags/danger_dag/plugin/pgoutput_pipeline"),
        ):
            page.goto(base + path)
            frame = page.frame_locator("iframe")
            frame.locator(FILLED).first.wait_for()
            found[name] = frame.locator("main").inner_text()
            page.screenshot(path=str(Path(folder) / f"{name}.png"))
        browser.close()
    found["hosts"] = sorted(set(found["hosts"]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
