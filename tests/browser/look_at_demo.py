"""Opens the page of the demo's pipeline in Chromium, and prints as JSON what a person would see.

``python look_at_demo.py BASE_URL CHROMIUM FOLDER``; the folder gets screenshots. It needs only playwright.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.browser.look import FILLED, QUIET


def main() -> None:
    """Look at the page in Airflow's navigation, and at that of the pipeline."""
    base, chromium, folder = sys.argv[1:]
    found: dict[str, Any] = {"errors": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        page = browser.new_page(viewport={"width": 1100, "height": 900})
        page.on("pageerror", lambda error: found["errors"].append(str(error)))
        # Airflow logs everybody in here.
        page.goto(base + "/")
        page.wait_for_load_state("networkidle")
        page.goto(base + "/plugin/pgoutput")
        frame = page.frame_locator("iframe")
        frame.locator(f"{FILLED} tbody tr").first.wait_for()
        found["in_navigation"] = frame.locator("main").inner_text()
        page.set_viewport_size({"width": 1100, "height": 420})
        page.screenshot(path=str(Path(folder) / "in_navigation.png"))
        address = frame.locator("tbody a").first.get_attribute("href")
        page.set_viewport_size({"width": 1100, "height": 900})
        page.goto(f"{base}/pgoutput/{address}")
        page.wait_for_selector("figure svg")
        found["one"] = page.inner_text("main")
        found["figures"] = page.evaluate(
            "[...document.querySelectorAll('figure svg')].map((svg) => {"
            " const line = svg.querySelector('polyline.first');"
            " return line ? line.getAttribute('points').split(' ').length"
            "  : svg.querySelectorAll('rect.first').length; })"
        )
        page.screenshot(path=str(Path(folder) / "one.png"))
        browser.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
