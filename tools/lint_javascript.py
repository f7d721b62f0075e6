"""Format, lint and types of the player's JavaScript, with the tools that package-lock.json pins.

Node is for whoever changes the player, and nobody needs it to run zerolab: where node, npm or the tools cannot be had
this says so and succeeds, unless ZEROLAB_REQUIRE_ALL=1.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "package-lock.json"
TOOLS = ROOT / "node_modules"
# npm writes it last of all, so an installation that was broken off is made again.
INSTALLED = TOOLS / ".package-lock.json"
INSTALL = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
CHECKS = (("biome", "check", "--error-on-warnings"), ("tsc",))


def missing() -> str | None:
    """What keeps the JavaScript from being looked at, in words; None once the pinned tools are there."""
    for name in ("node", "npm"):
        if not shutil.which(name):
            return f"{name} is missing (apt install nodejs npm)"
    if INSTALLED.exists() and INSTALLED.stat().st_mtime >= LOCK.stat().st_mtime:
        return None
    done = subprocess.run([shutil.which("npm") or "npm", *INSTALL], cwd=ROOT, check=False)
    return f"npm ci failed with status {done.returncode}" if done.returncode else None


def main() -> int:
    """Runs the checks; the status of the first that fails."""
    trouble = missing()
    if trouble:
        required = os.environ.get("ZEROLAB_REQUIRE_ALL") == "1"
        end = "ZEROLAB_REQUIRE_ALL=1 wants it looked at." if required else "All else was."
        print(f"lint: the player's JavaScript was not looked at: {trouble}. {end}", file=sys.stderr)
        return int(required)
    for name, *arguments in CHECKS:
        status = subprocess.run([TOOLS / ".bin" / name, *arguments], cwd=ROOT, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
