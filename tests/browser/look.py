"""Opens Airflow's pages in Chromium and prints as JSON what a person would see. It needs only playwright.

``python look.py BASE_URL CHROMIUM PASSWORD FOLDER empty|filled``; the folder gets screenshots. ``empty``: no
run of a pipeline has told anything yet.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

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
#: The page's name in Airflow.
VIEW = "PostgreSQL to Iceberg"


def main() -> None:
    """Look at each view."""
    base, chromium, password, folder, lake = sys.argv[1:]
    found: dict[str, Any] = {"errors": [], "hosts": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        look = _Look(browser, base, Path(folder), found)
        look.see("anonymous", "/pgoutput/")
        _by_clicks(look, password, is_empty=lake == "empty")
        if lake == "filled":
            _as_viewer(look)
            _with_few_rights(look, password)
        browser.close()
    found["hosts"] = sorted(set(found["hosts"]))
    print(json.dumps(found))


class _Look:
    """A browser's page, and what is noted of it."""

    def __init__(self, browser: Browser, base: str, folder: Path, found: dict[str, Any]) -> None:
        self._browser, self.base, self.folder, self.found = browser, base, folder, found
        self._open()

    def _open(self) -> None:
        found = self.found
        self.context = self._browser.new_context(viewport={"width": 1100, "height": 900})
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: found["errors"].append(str(error)))
        self.page.on("request", lambda request: found["hosts"].append(request.url.split("/")[2]))
        self.page.on(
            "console",
            lambda message: (
                found["errors"].append(message.text)
                if "Content Security Policy" in message.text
                else None
            ),
        )

    def log_in(self, user: str, password: str) -> None:
        """Forget who was there, and log in."""
        self.context.close()
        self._open()
        answer = self.context.request.post(
            f"{self.base}/auth/token", data={"username": user, "password": password}
        )
        token = answer.json()["access_token"]
        self.context.add_cookies([{"name": "_token", "value": token, "url": self.base}])

    def see(self, name: str, path: str) -> None:
        """Note what stands on the page, and after how many seconds it stood there."""
        started = time.monotonic()
        self.page.goto(self.base + path)
        self.page.wait_for_selector(FILLED)
        self.found[f"{name}_seconds"] = round(time.monotonic() - started, 2)
        self.page.wait_for_load_state("networkidle")
        self.found[name] = self.page.inner_text("main")
        self.page.screenshot(path=str(self.folder / f"{name}.png"))


def _by_clicks(look: _Look, password: str, *, is_empty: bool) -> None:
    """Go from Airflow's form to the page as a person does, without an address or a token."""
    page, found = look.page, look.found
    page.goto(look.base + "/")
    page.locator("input[name=username]").fill("ann")
    page.locator("input[name=password]").fill("not the password")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Invalid credentials").first.wait_for()
    page.locator("input[name=password]").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("menuitem", name=VIEW).click()
    frame = page.frame_locator("iframe")
    frame.locator(FILLED).first.wait_for()
    found["clicked_navigation"] = frame.locator("main").inner_text()
    page.screenshot(path=str(look.folder / "clicked_navigation.png"))
    if is_empty:
        return
    frame.get_by_role("link", name="db.example.com:5432/app/shop").click()
    frame.locator("figure").first.wait_for()
    found["clicked_pipeline"] = frame.locator("main").inner_text()
    page.get_by_role("link", name="Dags", exact=True).click()
    page.get_by_role("link", name="shop_dag", exact=True).first.click()
    page.get_by_role("tab", name=VIEW).or_(page.get_by_role("link", name=VIEW)).first.click()
    frame.locator(FILLED).first.wait_for()
    found["clicked_tab"] = frame.locator("main").inner_text()
    page.screenshot(path=str(look.folder / "clicked_tab.png"))


def _with_few_rights(look: _Look, password: str) -> None:
    for user in ("bob", "cat"):
        look.log_in(user, password)
        look.see(f"all_of_{user}", "/pgoutput/")
        look.see(f"shop_of_{user}", "/pgoutput/?dag_id=shop_dag")
        look.see(f"danger_of_{user}", "/pgoutput/?dag_id=danger_dag")
        look.see(f"by_number_of_{user}", look.found["address_of_shop"])


def _as_viewer(look: _Look) -> None:
    """Look at everything as somebody who may read all DAGs."""
    page, found = look.page, look.found
    # A server that has just started answers its first questions more slowly.
    look.see("first_look", "/pgoutput/?dag_id=danger_dag")
    look.see("all", "/pgoutput/")
    page.get_by_role("link", name="db.example.com:5432/app/shop").click()
    page.wait_for_selector("figure")
    found["address_of_shop"] = page.url.removeprefix(look.base)
    look.see("one", found["address_of_shop"])
    found["figures"] = page.locator("figure svg").count()
    found["rows"] = page.locator("tbody").first.locator("tr").count()
    page.get_by_role("button", name="inserts").click()
    found["most_inserts"] = page.locator("tbody tr").first.inner_text()
    page.get_by_role("searchbox").fill("t0777")
    found["searched"] = page.locator("tbody").first.inner_text()
    found["title"] = page.title()
    for name, dag in (
        ("of_dag", "danger_dag"),
        ("copying", "copy_dag"),
        ("logging", "logging_dag"),
        ("aside", "aside_dag"),
        ("late", "late_dag"),
        ("retrying", "retry_dag"),
        ("failed", "failed_dag"),
        ("first_failed", "first_failed_dag"),
        ("plainly_failed", "plainly_failed_dag"),
        ("of_no_dag", "nobodys"),
    ):
        look.see(name, f"/pgoutput/?dag_id={dag}")
    page.clock.install()
    look.see("before_the_next_look", "/pgoutput/?dag_id=danger_dag")
    with page.expect_request(lambda request: "/dags/danger_dag/dagRuns" in request.url) as asked:
        page.clock.fast_forward(60_000)
    found["asked_again"] = asked.value.url
    page.set_viewport_size({"width": 360, "height": 700})
    page.emulate_media(color_scheme="dark")
    look.see("narrow_and_dark", "/pgoutput/?dag_id=shop_dag")
    found["overflow"] = page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    found["ground"] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.set_viewport_size({"width": 1100, "height": 900})
    for name, path in (
        ("in_navigation", "/plugin/pgoutput"),
        ("on_dag", "/dags/danger_dag/plugin/pgoutput_pipeline"),
    ):
        page.goto(look.base + path)
        frame = page.frame_locator("iframe")
        frame.locator(FILLED).first.wait_for()
        found[name] = frame.locator("main").inner_text()
        page.screenshot(path=str(look.folder / f"{name}.png"))


if __name__ == "__main__":
    main()
