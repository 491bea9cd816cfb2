"""A headless Chromium that looks at TensorBoard, and TensorBoard itself; both are always ended."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

# TensorBoard's pages are nested shadow roots, which a selector does not enter.
EVERYTHING = """
const every = (root, found = []) => {
  for (const e of root.querySelectorAll('*')) { found.push(e); if (e.shadowRoot) every(e.shadowRoot, found); }
  return found;
};
const tagged = (name) => every(document).filter((e) => e.tagName.toLowerCase() === name);
"""


class Page:
    """A browser window of 1280 x 800."""

    def __init__(self, driver) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(address)

    def scheme(self, name: str) -> None:
        """Prefer `light` or `dark` from now on."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def ask(self, script: str) -> Any:
        """What a script returns, in which `every` and `tagged` enter shadow roots."""
        return self.driver.execute_script(EVERYTHING + script)

    def until(self, script: str, wanted: Any, seconds: float = 60) -> None:
        """Wait for a script to return what is wanted."""
        end = time.monotonic() + seconds
        while (found := self.ask(script)) != wanted:
            assert time.monotonic() < end, f"after {seconds} s {found}, not {wanted}"
            time.sleep(0.2)

    def picture(self, path: Path) -> None:
        """Save what is seen, once nothing moves any more."""
        before = None
        while (now := self.driver.get_screenshot_as_png()) != before:
            before = now
            time.sleep(0.5)
        path.write_bytes(now)


@contextmanager
def browser() -> Iterator[Page]:
    """Skips without Chromium and its driver."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if not (CHROMIUM and DRIVER):
        pytest.skip("no chromium and chromedriver on this machine: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        size = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield Page(driver)
    finally:
        driver.quit()


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """TensorBoard on a free port of this machine alone; gives its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", "0", "--host", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        found = next((m[0] for line in process.stdout if (m := re.search(r"http://127\.0\.0\.1:\d+/", line))), None)
        assert found, "TensorBoard ended without an address"
        yield found
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
