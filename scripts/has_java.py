"""Exit 0 when a Java 17 or 21 is on this machine (JAVA_HOME first, then PATH), else 1."""

import os
import re
import shutil
import subprocess
import sys

home = os.environ.get("JAVA_HOME")
candidates = [os.path.join(home, "bin", "java")] if home else []
found = shutil.which("java")
if found:
    candidates.append(found)
for java in candidates:
    try:
        run = subprocess.run(  # noqa: S603
            [java, "-version"], check=False, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        continue
    version = re.search(r'version "(\d+)', run.stderr + run.stdout)
    if version and int(version.group(1)) in (17, 21):
        sys.exit(0)
sys.exit(1)
