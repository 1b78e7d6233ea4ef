"""The tree's own properties: sizes, names, imports, and that its pages are true.

A rule that old code breaks is ratcheted: the exception is listed by name with its size of today,
may only shrink, and leaves the list once it obeys.
"""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import tomllib
from collections import Counter
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"
SOURCE = SOURCES / "headrace"
TREES = (
    SOURCE,
    SOURCES / "headrace_verify",
    SOURCES / "headrace_bench",
    SOURCES / "pyspark_headrace",  # modules of the distribution headrace, found by their names
    SOURCES / "pyspark_headrace_batches",
    SOURCES / "pyspark_headrace_journal",
)

MODULE_LINES_MAX = 700  # where to cut below that is for readers to judge
CLASS_LINES, CLASS_LINES_MAX = 400, 470
FUNCTION_LINES, FUNCTION_LINES_MAX = 60, 70  # without the docstring

# --- the ratchet: what is larger than it should be, and how large it may be until it shrinks ----

LONG_CLASSES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}

BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
PURE_PACKAGES = ("records", "coordination")
IMPURE_MODULES = {"asyncio", "os", "time", "random", "uuid", "logging", "threading", "socket"}
PURE_NAMES = {("uuid", "UUID")}  # a type, no chance in it


def modules() -> list[Path]:
    return sorted(path for tree in TREES for path in tree.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(SOURCES).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def tracked_files() -> list[Path]:
    """What the project consists of: git's answer, or every file where there is no git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode == 0:
        paths = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    else:
        skipped = {".git", ".venv", ".cache", "__pycache__", "demo-output", "headrace-data"}
        paths = [p for p in ROOT.rglob("*") if not skipped & set(p.relative_to(ROOT).parts)]
    return sorted(path for path in paths if path.is_file())


def check_ratchet(sizes: dict[str, int], soft: int, hard: int, listed: dict[str, int]) -> None:
    too_long = {name: size for name, size in sizes.items() if size > hard}
    assert not too_long, f"longer than {hard} lines: split them"
    grown = {name: size for name, size in sizes.items() if size > max(soft, listed.get(name, 0))}
    assert not grown, f"longer than {soft} lines: split them, or list them in tests/test_tidy.py"
    obeying = [name for name in listed if sizes.get(name, 0) <= soft]
    assert not obeying, "these obey now or are gone: take them off the list"


# --- sizes -----------------------------------------------------------------------------------


def test_modules_are_short():
    sizes = {name_of(path): len(path.read_text().splitlines()) for path in modules()}
    check_ratchet(sizes, MODULE_LINES_MAX, MODULE_LINES_MAX, {})


def test_classes_are_short():
    sizes = {
        f"{name_of(path)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    }
    check_ratchet(sizes, CLASS_LINES, CLASS_LINES_MAX, LONG_CLASSES)


def functions() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    found = {}
    for path in modules():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{name_of(path)}:{node.name}"
                found[name if name not in found else f"{name}@{node.lineno}"] = node
    return found


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return node.end_lineno - body[0].lineno + 1 if body and node.end_lineno else 0


def test_functions_are_short():
    sizes = {name: body_lines(node) for name, node in functions().items()}
    check_ratchet(sizes, FUNCTION_LINES, FUNCTION_LINES_MAX, LONG_FUNCTIONS)


# --- the door of faces -----------------------------------------------------------------------


def test_faces_use_a_node_through_its_services():
    found = Counter(
        name_of(path)
        for face in ("http", "kafka", "rocketmq")
        for path in sorted((SOURCE / face).rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and node.attr != "services"
        and ast.unparse(node.value).rpartition(".")[2] in {"node", "_node"}
    )
    assert not found, "use `node.services`, or offer there what is missing"


def test_requests_are_charged_for_the_tasks_that_they_wait_for():
    """`asyncio.gather` makes tasks of coroutines: of these nobody knows for whom they run."""
    found = {
        f"{name_of(path)}: {ast.unparse(node)}"
        for package in ("http", "kafka/handlers", "rocketmq", "broker/services", "broker/shares")
        for path in sorted((SOURCE / package).rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "asyncio.gather"
        and not all("charged_alike" in ast.unparse(argument) for argument in node.args)
    }
    assert not found, "use `loop_turns.gather_charged`"


# --- names -----------------------------------------------------------------------------------


def test_no_module_has_a_name_that_says_nothing():
    parts = {name_of(p): set(p.relative_to(SOURCES).with_suffix("").parts) for p in modules()}
    assert not {name for name, words in parts.items() if words & BANNED_NAMES}


def test_every_module_opens_with_its_rules_and_every_package_has_an_init():
    silent = [
        name_of(path)
        for path in modules()
        if path.name != "__init__.py" and not ast.get_docstring(tree_of(path))
    ]
    assert not silent
    folders = {path.parent for path in modules()}
    assert not [name_of(folder) for folder in folders if not (folder / "__init__.py").exists()]


# --- imports ---------------------------------------------------------------------------------


def imports_of(path: Path, *, top_level_only: bool = False) -> set[tuple[str, str]]:
    """(module, name) pairs; the name is empty for a plain `import module`."""
    tree = tree_of(path)
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize("package", PURE_PACKAGES)
def test_the_pure_core_knows_no_outside_world(package):
    impure = {
        (name_of(path), module, name)
        for path in (SOURCE / package).rglob("*.py")
        for module, name in imports_of(path)
        if module.split(".")[0] in IMPURE_MODULES and (module, name) not in PURE_NAMES
    }
    assert not impure


PLANTED = {
    "import asyncio\nrun = asyncio.create_subprocess_exec\n": "TID251",
    "import asyncio\nrun = asyncio.create_subprocess_shell\n": "TID251",
    "from headrace.runtime.child_process import run_python\n": "TID251",
    "import os\nstart = os.posix_spawn\n": "TID251",
    "import os\nos.system(input())\n": "S605",
    "import subprocess\nsubprocess.getoutput(input())\n": "S605",
    "import os\nos.spawnl(os.P_WAIT, input())\n": "S606",
    "import subprocess\nsubprocess.run(input(), shell=True)\n": "S602",
    "exec(input())\n": "S102",
    "eval(input())\n": "S307",
    "import pickle\npickle.loads(input())\n": "S301",
    "import marshal\nmarshal.loads(input())\n": "S302",
    "import yaml\nyaml.load(input())\n": "S506",
}
"""What a broker must not do, and the linter's rule against it. That no module of a broker imports
`subprocess`, and none at all `pickle` and its like, are contracts in `.importlinter`."""


def test_the_linter_refuses_shells_processes_and_code_from_data():
    planted = "src/headrace/broker/planted.py"
    command = ["ruff", "check", "--no-cache", "--output-format=concise", "--stdin-filename"]
    if (ROOT / ".venv" / "bin" / "ruff").exists():
        command[0] = str(ROOT / ".venv" / "bin" / "ruff")
    for source, rule in PLANTED.items():
        done = subprocess.run(
            [*command, planted, "-"], input=source, cwd=ROOT, capture_output=True, text=True
        )
        assert f" {rule} " in done.stdout, (source, done.stdout, done.stderr)


def test_only_the_codecs_compile_source_and_no_module_is_imported_by_builtin():
    """No rule of the linter covers these."""
    call = re.compile(r"(?<![\w.])(compile|__import__)\(")
    calling = {name_of(path) for path in modules() if call.search(path.read_text())}
    assert calling == {"headrace/kafka/wire/codecs.py"}


def test_every_package_has_its_place_in_the_layers():
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    contract = config["importlinter:contract:layers"]
    words = re.findall(r"\w+", contract["layers"] + contract["exhaustive_ignores"])
    there = {
        p.stem for p in SOURCE.iterdir() if not p.name.startswith("_") and p.suffix != ".typed"
    }
    assert there <= set(words), "name it in .importlinter: who may import it?"


def test_every_distribution_has_its_tree_and_its_rules():
    trees = {p.name for p in SOURCES.iterdir() if (p / "__init__.py").exists()}
    assert trees == {tree.name for tree in TREES}
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    assert set(config["importlinter"]["root_packages"].split()) == trees


def test_imports_point_down():
    command = [str(ROOT / ".venv" / "bin" / "lint-imports"), "--no-cache"]
    if not Path(command[0]).exists():
        command[0] = "lint-imports"
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


CIRCLES = {"headrace": 2, "headrace_verify": 3}
"""The largest circle of imports of each distribution, in modules: may only fall, and none has more
than three."""


def imported_modules(path: Path, known: set[str]) -> set[str]:
    """The modules of the project that a module imports, for typing alone and in functions, too."""
    pairs = imports_of(path)
    return (
        {f"{module}.{name}" for module, name in pairs} | {module for module, _ in pairs}
    ) & known


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, straight or through others."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        found, left = set(), [start]
        while left:
            left += (new := imports[left.pop()] - found)
            found |= new
        reached[start] = found
    rings = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imports
        if module in reached[module]
    }
    return sorted(sorted(ring) for ring in rings)


def largest_circles() -> dict[str, int]:
    files = {name_of(path).removesuffix(".py").replace("/", "."): path for path in modules()}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    imports = {
        name: imported_modules(path, {*files}) - {name, *parents(name)}
        for name, path in files.items()
    }
    largest: dict[str, int] = {}
    for ring in circles(imports):
        tree = ring[0].partition(".")[0]
        largest[tree] = max(largest.get(tree, 0), len(ring))
    return largest


def test_few_modules_import_each_other_even_for_typing():
    """What imports each other in a circle can be understood only together."""
    assert largest_circles() == CIRCLES, "larger: part them; smaller: lower it in CIRCLES"
    assert max(CIRCLES.values()) <= 3


def parents(name: str) -> set[str]:
    """The packages that a module is in: importing it imports them, whatever it names."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def test_the_command_line_loads_no_spark_until_asked():
    early = {
        (name_of(path), module)
        for path in (SOURCE / "cli").rglob("*.py")
        for module, name in imports_of(path, top_level_only=True)
        if f"{module}.{name}".startswith(("headrace.pipeline", "pyspark", "pandas", "pyarrow"))
    }
    assert not early


def test_wheels_compile_where_only_the_required_packages_are():
    """mypyc follows every import of the core, also those of packages that only an extra brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    optional = {re.split(r"[>=<;\[]", one)[0] for name in extras for one in extras[name]}
    rules = project["tool"]["mypy"]["overrides"]
    ignored = {name.split(".")[0] for rule in rules for name in rule["module"]}
    brought = {
        top
        for top, names in packages_distributions().items()
        if optional & {name.lower().replace("_", "-") for name in names}
    } - {"librt"}  # comes with mypy, too
    imported = {
        module.split(".")[0] for path in SOURCE.rglob("*.py") for module, _ in imports_of(path)
    }
    assert imported & brought - ignored == set(), "let mypy ignore them in pyproject.toml"


# --- what must not be in the project -----------------------------------------------------------

# In pieces, so that this page does not find itself.
MACHINE_PATHS = re.compile("|".join(f"(?<![\\w.])/{name}/" for name in ("root", "work", "home")))
REGISTRIES = re.compile(
    "|".join(["(?:extra-)?index" + "-url", "trusted" + "-host", r"https?://[\w.-]*(?:artifactory)"])
    + r"|https?://(?:\d{1,3}\.){3}\d{1,3}[:/]\S*(?:simple|maven)"
)


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""  # a picture


def found_in_files(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in tracked_files()
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_names_a_path_of_the_machine_it_was_written_on():
    assert not found_in_files(MACHINE_PATHS)


def test_no_file_names_a_package_registry():
    assert not found_in_files(REGISTRIES)


# --- pages -----------------------------------------------------------------------------------

LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".md"]


def slug(heading: str) -> str:
    """The anchor that a heading gets on the usual hosts."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(text) for text in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in pages():
        for link in (first or second for first, second in LINK.findall(page.read_text())):
            if re.match(r"[a-z]+:", link):
                continue  # the web; not ours to promise
            target, _, anchor = link.partition("#")
            path = (page.parent / target) if target else page
            leads = path.exists() and (
                not anchor or path.suffix != ".md" or slug(anchor) in anchors(path)
            )
            if not leads:
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


NAMED_FILE = re.compile(
    r"`((?:tests|scripts|benchmarks|src|packages)/[\w/.-]+\.(?:py|sh))(?:::\w+)?`"
)
NAMED_MODULE = re.compile(r"`([a-z_]+/[\w/]+\.py)`")


def test_files_that_pages_name_exist():
    source = ROOT / "src" / "headrace"
    rooms = {path.name for path in source.iterdir() if path.is_dir()}
    missing = []
    for page in pages():
        text = page.read_text()
        named = [ROOT / name for name in NAMED_FILE.findall(text)]
        named += [
            source / name for name in NAMED_MODULE.findall(text) if name.split("/")[0] in rooms
        ]
        missing += [f"{page.relative_to(ROOT)}: {file}" for file in named if not file.exists()]
    assert not missing


def test_an_afternoons_reading_stays_one():
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    section = text.partition("## An afternoon's reading")[2].partition("## ")[0]
    files = [ROOT / "docs" / link for link in re.findall(r"\]\((\S+\.py)\)", section)]
    assert 10 <= len(files) <= 15
    assert sum(len(file.read_text().splitlines()) for file in files) <= 5_200


def test_decisions_are_numbered_without_gaps_and_say_what_else_was_tried():
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [int(path.name[:4]) for path in decisions]
    assert numbers == list(range(1, len(numbers) + 1))
    for path in decisions:
        headings = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
        assert headings == ["Context", "Choice", "What else was considered", "Figures"], path.name
        assert len(path.read_text().splitlines()) <= 60, path.name


def test_the_lifecycle_of_logs_is_driven_by_the_log_alone():
    """Others ask the log: see `PartitionLog` and `LogTenure`."""
    reaching = [
        name_of(path)
        for path in modules()
        if ".lifecycle_host" in path.read_text() and not name_of(path).startswith("headrace/log/")
    ]
    assert reaching == []


def test_tests_wait_for_a_condition_in_one_way():
    """`until` in an event loop and `wait_until` in a thread."""
    pattern = re.compile(r"^(?:async )?def (?:until|wait_until)\(", re.MULTILINE)
    folder = ROOT / "tests"
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if pattern.search(path.read_text())
    }
    assert found == {"waiting.py"}
